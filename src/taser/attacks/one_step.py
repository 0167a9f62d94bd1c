"""One step of the gradient's sign (Goodfellow et al., 2015): weak, and useful to compare with."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .losses import AttackLoss, cross_entropy
from .pgd import input_gradient
from .protocol import Model
from .quiet import quiet
from .threat import Threat
from .words import in_words


@dataclass(frozen=True)
class FGSM:
    """x' = Π(x + ε·ascent(∇ℓ(x))), from the clean point."""

    threat: Threat = field(default_factory=Threat)
    loss: AttackLoss = cross_entropy
    name: str = "fgsm"

    def __repr__(self) -> str:
        return in_words(self)

    @property
    def passes(self) -> int:
        """Forward passes that an example costs at most; a backward pass counts two."""
        return 3

    def __call__(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002 — nothing is drawn
    ) -> Tensor:
        """Attacked inputs, (B, *), detached. y: (B,)."""
        x = x.detach()
        with quiet(model):
            gradient = input_gradient(model, x, y, self.loss)
        return self.threat.project(x + self.threat.epsilon * self.threat.ascent(gradient), x)
