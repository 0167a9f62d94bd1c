"""Randomness that depends on where training stands and on nothing else."""

import numpy as np
import torch


def mixed(*numbers: int) -> int:
    """One seed out of several numbers, which do not run into each other."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def seeded_step(seed: int, step: int, rank: int, device: torch.device) -> torch.Generator:
    """The source of all draws in one step; dropout and the like are seeded too.

    So a resumed run draws what an uninterrupted one would have, with no state to be kept.
    """
    torch.manual_seed(mixed(seed, step, rank, 0))
    return torch.Generator(device).manual_seed(mixed(seed, step, rank, 1))
