"""What a corruption is: a change of pictures at five severities."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SEVERITIES = (1, 2, 3, 4, 5)
TOLERANCE = 1e-6  # of [0, 1], as everywhere


@dataclass(frozen=True)
class Corruption:
    """A change that nobody chose to do harm: noise, blur, weather, compression.

    apply: (x, level, generator) → pictures like x, (B, C, H, W); levels: what severity 1 … 5 mean
    to `apply`; kind: what others of its sort are called together.

    >>> import torch
    >>> dim = Corruption("dim", lambda x, level, generator: level * x, (0.9, 0.8, 0.7, 0.6, 0.5))
    >>> float(dim(torch.ones(1, 1, 2, 2), severity=5).mean())
    0.5
    """

    name: str
    apply: Callable[[Tensor, Any, torch.Generator], Tensor]
    levels: tuple[Any, ...]
    kind: str = "other"
    needs_colour: bool = False

    def __post_init__(self) -> None:
        if len(self.levels) != len(SEVERITIES):
            raise ValueError(f"{self.name} should have five levels; got {len(self.levels)}")

    @torch.no_grad()
    def __call__(self, x: Tensor, severity: int, *, seed: int = 0) -> Tensor:
        """x, (B, C, H, W) in [0, 1], corrupted; the same draws at every severity of one seed."""
        if severity not in SEVERITIES:
            raise ValueError(f"severity should be one of {SEVERITIES}; got {severity}")
        if (reason := self.unfit(x)) is not None:
            raise ValueError(f"{self.name} cannot be done: {reason}")
        if float(x.min()) < -TOLERANCE or float(x.max()) > 1 + TOLERANCE:
            raise ValueError(
                f"pictures should lie in [0, 1]; got {float(x.min()):g} to {float(x.max()):g}"
            )
        generator = torch.Generator(x.device).manual_seed(seed)
        return self.apply(x.clamp(0, 1), self.levels[severity - 1], generator).clamp(0, 1)

    def unfit(self, x: Tensor) -> str | None:
        """Why x cannot be corrupted so, or None."""
        if x.ndim != 4:
            return f"it takes pictures (B, C, H, W), these have shape {tuple(x.shape)}"
        if self.needs_colour and x.shape[1] != 3:
            return f"it takes three colours, these pictures have {x.shape[1]} channel(s)"
        return None


def in_pixels(length: float, x: Tensor) -> float:
    """A length meant for 32×32 pictures, in pixels of x.

    Larger pictures stretch it. Smaller ones do not shrink it: a blur of a quarter of a pixel would
    do nothing.
    """
    return length * max(1.0, min(x.shape[-2:]) / 32)
