"""Pictures read at moved places."""

import torch
import torch.nn.functional as F
from torch import Tensor


def shifted(x: Tensor, offset: Tensor) -> Tensor:
    """x(p + offset(p)) by bilinear interpolation, the edge repeated outside.

    x: (B, C, H, W); offset: (B, H, W, 2) or (B, 1, 1, 2), in pixels, across and then down.
    """
    height, width = x.shape[-2:]
    down, across = torch.meshgrid(
        torch.arange(height, dtype=x.dtype, device=x.device),
        torch.arange(width, dtype=x.dtype, device=x.device),
        indexing="ij",
    )
    place = torch.stack([across, down], -1) + offset
    size = torch.tensor([width, height], dtype=x.dtype, device=x.device)
    grid = (2 * place + 1) / size - 1  # grid_sample counts from −1 to 1, edge to edge
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def smooth_noise(x: Tensor, knots: int, channels: int, generator: torch.Generator) -> Tensor:
    """N(0, 1) on a grid of knots × knots, drawn out over the pictures: (B, channels, H, W)."""
    shape = (len(x), channels, knots, knots)
    coarse = torch.randn(shape, dtype=x.dtype, device=x.device, generator=generator)
    return F.interpolate(coarse, x.shape[-2:], mode="bicubic", align_corners=True)
