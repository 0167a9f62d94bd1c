"""A random part of a batch whose penalty is, on average, that of the whole."""

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
    n, size = n * processes(), size * processes()
    if n == 1:
        return 1.0  # one example has no variance that could be corrected
    return (n / (n - 1)) * ((size - 1) / size)


def processes() -> int:
    """How many processes share the global batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
