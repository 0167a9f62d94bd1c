"""Blur of the lens and of the hand. Lengths are in pixels of a 32×32 picture."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .corruption import in_pixels
from .warp import shifted


def gaussian_blur(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """k ∗ x with k(u) ∝ exp(−‖u‖²/2σ²)."""
    sigma = in_pixels(sigma, x)
    squared = _squared_distance(math.ceil(4 * sigma), x)
    return _convolved(x, torch.exp(-squared / (2 * sigma**2)))


def defocus_blur(x: Tensor, radius: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """k ∗ x with k a disc whose edge falls off over one pixel.

    The radii give kernels of the variance that those of CIFAR-10-C have, which are a coarse disc
    smoothed by a 3×3 Gaussian.
    """
    radius = in_pixels(radius, x)
    distance = _squared_distance(math.ceil(radius + 0.5), x).sqrt()
    return _convolved(x, (radius + 0.5 - distance).clamp(0, 1))


def motion_blur(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """Σ_i k_i x(· + i·u) with k_i ∝ exp(−i²/2σ²), i ≥ 0: a trail in one direction u.

    The direction is each picture's own, within 45° of the horizontal.
    """
    sigma = in_pixels(sigma, x)
    angle = torch.rand(len(x), dtype=x.dtype, device=x.device, generator=generator)
    angle = math.pi / 4 * (2 * angle - 1)
    way = torch.stack([angle.cos(), angle.sin()], 1)
    trail, total = torch.zeros_like(x), 0.0
    for step in range(math.ceil(4 * sigma)):
        weight = math.exp(-(step**2) / (2 * sigma**2))
        trail += weight * shifted(x, step * way[:, None, None])
        total += weight
    return trail / total


def _squared_distance(reach: int, x: Tensor) -> Tensor:
    """‖u‖² for u in a square of pixels around zero: (2·reach + 1, 2·reach + 1)."""
    line = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device).square()
    return line[:, None] + line


def _convolved(x: Tensor, kernel: Tensor) -> Tensor:
    """Every channel with the kernel, scaled to sum to one; the edge is repeated outside."""
    reach = len(kernel) // 2
    padded = F.pad(x, [reach] * 4, mode="replicate").flatten(0, 1)[:, None]
    return F.conv2d(padded, (kernel / kernel.sum())[None, None]).view_as(x)
