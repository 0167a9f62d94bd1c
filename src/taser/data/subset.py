"""The examples that every model is judged by."""

import numpy as np
import torch
from torch import Tensor


def subset(total: int, n: int, seed: int = 0) -> Tensor:
    """`n` of `total` examples, drawn once for all models: (min(n, total),), in rising order.

    Smaller subsets lie inside larger ones.

    >>> subset(10, 4)
    tensor([2, 4, 6, 7])
    >>> subset(3, 10)
    tensor([0, 1, 2])
    """
    if n < 1:
        raise ValueError(f"n should be at least 1; got {n}")
    drawn = np.random.default_rng(seed).permutation(total)[:n]
    return torch.from_numpy(np.sort(drawn))
