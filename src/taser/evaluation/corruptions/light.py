"""Light and colour."""

import torch
from torch import Tensor

SMALL = 1e-12  # for shares of zero


def brightness(x: Tensor, change: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """V ← V + c in hue, saturation and value, where V = max over colours: x·(V + c)/V.

    Black, which has no colour to keep, becomes grey.
    """
    value = x.amax(1, keepdim=True)
    brighter = (value + change).clamp(0, 1)
    return torch.where(value > 0, x / value.clamp_min(SMALL), 1.0) * brighter


def contrast(x: Tensor, factor: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """m + c·(x − m), m each channel's mean."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


def saturate(x: Tensor, level: tuple[float, float], generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """S ← a·S + b with S = (V − min)/V, hue and V = max kept: V − (V − x)·S′/S.

    Grey stays grey, since it has no hue.
    """
    factor, plus = level
    value = x.amax(1, keepdim=True)
    saturation = (value - x.amin(1, keepdim=True)) / value.clamp_min(SMALL)
    wanted = (factor * saturation + plus).clamp(0, 1)
    return value - (value - x) * wanted / saturation.clamp_min(SMALL)
