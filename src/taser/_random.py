"""Seeds and random draws."""

import numpy as np
import torch

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
