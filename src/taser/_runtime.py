"""Devices, precision, shapes of tensors, processes and seeds."""

import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn


def default_device() -> torch.device:
    """The GPU, if it computes in float64 as the statistics do; else the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found if found is not None and found.type != "mps" else torch.device("cpu")


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16; emulated, it is many times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def rows_like(numbers: Tensor, x: Tensor) -> Tensor:
    """One number an example, (B,), shaped to multiply or to choose rows of x, (B, *): (B, 1, …).

    >>> import torch
    >>> rows_like(torch.arange(2), torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 1, 1, 1])
    """
    return numbers.view(-1, *[1] * (x.ndim - 1))


def noise_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws of N(0, I) in the shape and dtype and on the device of x."""
    return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)


def full_precision(tensor: Tensor) -> Tensor:
    """At least float32: derivatives, exponentials and statistics are not for half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def world_size() -> int:
    """How many processes share the global batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main_process() -> bool:
    """Whether this process writes files and prints: the first of several, or the only one."""
    return world_size() == 1 or dist.get_rank() == 0


def all_sum(tensor: Tensor) -> Tensor:
    """Sum `tensor` over the processes, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def average_buffers(module: nn.Module) -> None:
    """Give all processes the mean of their buffers, such as BatchNorm's statistics."""
    for buffer in module.buffers():
        if buffer.is_floating_point():
            all_sum(buffer).div_(world_size())


def exit_process() -> None:
    """End this process at once with exit code 0 if it is one of several; else do nothing.

    DistributedDataParallel keeps gloo's threads alive beyond destroy_process_group (torch 2.13). If
    a tensor is freed while the interpreter shuts down, the process aborts, and a finished run
    counts as failed.
    """
    if world_size() > 1:
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


WEIGHTS, VALIDATION = 0, 1  # what is drawn outside of steps


def combine_seeds(*numbers: int) -> int:
    """One seed from several numbers; different tuples give different seeds.

    The length is part of it, because SeedSequence takes (1,) and (1, 0) for the same.
    """
    return int(np.random.SeedSequence((len(numbers), *numbers)).generate_state(1)[0])


def seeded_step(seed: int, step: int, rank: int, device: torch.device) -> torch.Generator:
    """The generator of one training step; the global one, which dropout uses, is seeded as well.

    So a resumed run draws what an uninterrupted one would, and no generator's state is saved.
    """
    torch.manual_seed(combine_seeds(seed, step, rank, 0))
    return torch.Generator(device).manual_seed(combine_seeds(seed, step, rank, 1))
