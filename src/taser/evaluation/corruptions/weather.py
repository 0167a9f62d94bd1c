"""Fog, and the bending of hot air."""

import torch
from torch import Tensor

from .warp import shifted, smooth_noise

KNOTS = (2, 3, 5, 9, 17)  # each grid twice as fine as the last


def fog(x: Tensor, level: tuple[float, float], generator: torch.Generator) -> Tensor:
    """(x + c·fog)·m/(m + c), m the picture's brightest value: fog adds light, and takes contrast.

    The fog is Σ_k w^{−k}·noise of ever finer grids, brought to [0, 1]: for the plasma fractal of
    CIFAR-10-C, whose height falls by w from one grid to the next as well.
    """
    amount, decay = level
    octaves = [
        smooth_noise(x, knots, 1, generator) / decay**octave for octave, knots in enumerate(KNOTS)
    ]
    plasma = torch.stack(octaves).sum(0)
    low, high = plasma.amin((1, 2, 3), keepdim=True), plasma.amax((1, 2, 3), keepdim=True)
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * (plasma - low) / (high - low)) * brightest / (brightest + amount)


def elastic(x: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """x(p + size·u(p)) with u a smooth random field of about unit variance, size in 1/32 of x.

    CIFAR-10-C has a random affine map and a field of its own; this one field of 4 × 4 knots moves
    pixels about as far.
    """
    field = smooth_noise(x, 4, 2, generator).movedim(1, -1)
    return shifted(x, size * min(x.shape[-2:]) / 32 * field)
