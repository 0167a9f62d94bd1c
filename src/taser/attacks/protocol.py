"""What every attack of an evaluation looks like."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from .threat import Threat

Model = Callable[[Tensor], Tensor]
"""(B, *) → logits (B, C)."""


class Attack(Protocol):
    """A search for a wrong answer inside a threat's ball.

    name: what tables and records call it. An attack that notices something odd about the model says
    so with an :class:`AttackWarning`. It may have `passes`, the forward passes that an example
    costs at most, for a guess at the time left.
    """

    @property
    def name(self) -> str: ...

    @property
    def threat(self) -> Threat: ...

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The attacked inputs, (B, *), detached. x: (B, *); y: (B,), class numbers."""
        ...


class AttackWarning(UserWarning):
    """Something about a model that makes an attack's result doubtful."""
