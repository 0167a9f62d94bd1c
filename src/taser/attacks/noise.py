"""Blind search: points drawn evenly from the ball."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .protocol import Model
from .quiet import quiet
from .threat import Threat
from .worst import Worst


@dataclass(frozen=True)
class RandomNoise:
    """The worst of `samples` random points; an attack worth its name finds all that this finds."""

    threat: Threat = field(default_factory=Threat)
    samples: int = 100
    name: str = "noise"

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples should be at least 1; got {self.samples}")

    @property
    def passes(self) -> int:
        """Forward passes that an example costs at most; a backward pass counts two."""
        return self.samples

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Attacked inputs, (B, *), detached. y: (B,)."""
        with quiet(model), torch.no_grad():
            worst = Worst(model, x, y)
            for _ in range(self.samples):
                rows = worst.standing
                if len(rows) == 0:
                    break
                moved = self.threat.random(x[rows], generator)
                worst.offer(rows, moved, model(moved.clone()))  # which may work in place
        return worst.x
