"""Attacks made on another model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .protocol import Attack, Model
from .threat import Threat
from .words import in_words


@dataclass(frozen=True)
class Transfer:
    """What `attack` finds against `surrogate`, handed to the model as it is.

    It needs nothing of the model: where it beats a white-box attack, gradients are hidden. The
    attack should not stop where the surrogate errs: :class:`LastingPGD` goes on.
    """

    attack: Attack
    surrogate: Model
    name: str = "transfer"

    def __repr__(self) -> str:
        return in_words(self)

    @property
    def threat(self) -> Threat:
        """The ball of the attack inside."""
        return self.attack.threat

    @property
    def passes(self) -> int:
        """Forward passes that an example costs at most; a backward pass counts two."""
        return getattr(self.attack, "passes", 1)

    def __call__(
        self,
        model: Model,  # noqa: ARG002 — that is the point
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Attacked inputs, (B, *), detached. y: (B,)."""
        return self.attack(self.surrogate, x, y, generator=generator)
