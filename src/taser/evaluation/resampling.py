"""The bootstrap: how much a figure would change had other examples been drawn."""

import torch
from torch import Tensor

CONFIDENCE = 0.95


def draws(resamples: int, size: int, generator: torch.Generator) -> Tensor:
    """How often each of `size` examples is drawn in `size` draws with replacement: (R, size)."""
    drawn = torch.randint(size, (resamples, size), generator=generator)
    ones = torch.ones(resamples, size, dtype=torch.float64)
    return torch.zeros_like(ones).scatter_add_(1, drawn, ones)


def percentiles(figures: Tensor) -> tuple[float, float]:
    """The interval that holds 95 % of a figure's resampled values, (R,)."""
    tail = (1 - CONFIDENCE) / 2
    ends = torch.tensor([tail, 1 - tail], dtype=figures.dtype)
    low, high = figures.quantile(ends).tolist()
    return low, high
