"""Randomness that depends on where training stands and on nothing else."""

import numpy as np
import torch

WEIGHTS, VALIDATION = 0, 1  # what is drawn outside of steps


def mixed(*numbers: int) -> int:
    """One seed out of several numbers, which do not run into each other.

    Their count is one of them: by itself SeedSequence takes (1,) and (1, 0) for the same.
    """
    return int(np.random.SeedSequence((len(numbers), *numbers)).generate_state(1)[0])


def seeded_step(seed: int, step: int, rank: int, device: torch.device) -> torch.Generator:
    """The source of all draws in one step; dropout and the like are seeded too.

    So a resumed run draws what an uninterrupted one would have, with no state to be kept.
    """
    torch.manual_seed(mixed(seed, step, rank, 0))
    return torch.Generator(device).manual_seed(mixed(seed, step, rank, 1))
