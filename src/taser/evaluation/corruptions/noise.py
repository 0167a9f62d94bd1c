"""Noise of the sensor and of the wire."""

import torch
from torch import Tensor


def gaussian_noise(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """x + σε, ε ~ N(0, 1)."""
    return x + sigma * _normal(x, generator)


def shot_noise(x: Tensor, photons: float, generator: torch.Generator) -> Tensor:
    """Poisson(c·x)/c: a pixel at 1 catches c photons on average."""
    return torch.poisson(photons * x, generator=generator) / photons


def impulse_noise(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Salt and pepper: `share` of the values becomes 0 or 1, evenly."""
    draw = torch.rand(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    return torch.where(draw < share / 2, 0.0, torch.where(draw < share, 1.0, x))


def speckle_noise(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """x + σ·x·ε, ε ~ N(0, 1): bright pixels suffer most."""
    return x + sigma * x * _normal(x, generator)


def _normal(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
