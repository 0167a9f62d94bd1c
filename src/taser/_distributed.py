"""Randomness that depends on where training stands and on nothing else."""

import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


def random_part(size: int, fraction: float, generator: torch.Generator) -> Tensor | None:
    """The rows of a random `fraction` of `size` examples, at least two; None if that is all."""
    n = min(size, max(2, round(fraction * size)))
    if n == size:
        return None
    return torch.randperm(size, device=generator.device, generator=generator)[:n]


def variance_correction(n: int, size: int) -> float:
    """What makes the variance of n examples about their own mean unbiased for that of `size`.

    Drawn without replacement, Σ(r_i − r̄)²/n is short by (n−1)/n, where the whole batch's own is
    short by (size−1)/size. Across processes the mean is of all their examples.
    """
    n, size = n * world_size(), size * world_size()
    if n == 1:
        return 1.0  # one example has no variance that could be corrected
    return (n / (n - 1)) * ((size - 1) / size)


def world_size() -> int:
    """How many processes share the global batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main_process() -> bool:
    """Whether this process is the one that writes and tells, which a single one always is."""
    return world_size() == 1 or dist.get_rank() == 0


def exit_process() -> None:
    """End a process of several here and now, well; alone, do nothing.

    DistributedDataParallel keeps gloo's threads alive beyond destroy_process_group (torch 2.13).
    One that still has a tensor to free when the interpreter shuts down aborts the process, and then
    a run that was finished counts as failed.
    """
    if world_size() > 1:
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


WEIGHTS, VALIDATION = 0, 1  # what is drawn outside of steps


def combine_seeds(*numbers: int) -> int:
    """One seed out of several numbers, which do not run into each other.

    Their count is one of them: by itself SeedSequence takes (1,) and (1, 0) for the same.
    """
    return int(np.random.SeedSequence((len(numbers), *numbers)).generate_state(1)[0])


def seeded_step(seed: int, step: int, rank: int, device: torch.device) -> torch.Generator:
    """The source of all draws in one step; dropout and the like are seeded too.

    So a resumed run draws what an uninterrupted one would have, with no state to be kept.
    """
    torch.manual_seed(combine_seeds(seed, step, rank, 0))
    return torch.Generator(device).manual_seed(combine_seeds(seed, step, rank, 1))
