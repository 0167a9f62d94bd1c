"""Staying near the model that fine-tuning began with."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from taser.attacks import Model, kl_divergence


@dataclass(frozen=True, eq=False, repr=False)
class Loss:
    """A scalar to minimise, its parts by name, and the outputs that were computed on the way.

    clean: outputs at x, or None where the objective does not ask there; attacked: outputs at the
    adversarial points, or None. Both (B, …), with their graph.
    """

    total: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)
    clean: Tensor | None = None
    attacked: Tensor | None = None

    def __repr__(self) -> str:
        parts = "".join(f", {name}={float(part.mean()):.4g}" for name, part in self.parts.items())
        return f"Loss({float(self.total):.4g}{parts})"


def check_weight(name: str, weight: float) -> None:
    """Raise for the weight of a term that is negative, infinite or NaN."""
    if not 0 <= weight < inf:
        raise ValueError(f"{name} should be zero or more, and finite; got {weight}")


class Objective(ABC):
    """Call it in any loop: loss = objective(model, x, y)."""

    adversarial: ClassVar[bool] = True  # whether it trains at attacked points

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The loss of a batch, a scalar. x: (B, *); y: (B,)."""
        return self.loss(model, x, y, self.attack(model, x, y, generator=generator)).total

    def attack(
        self,
        model: Model,  # noqa: ARG002
        x: Tensor,
        y: Tensor,  # noqa: ARG002
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002
    ) -> Tensor:
        """The points to train at, (B, *); x itself unless the objective is adversarial."""
        return x

    @abstractmethod
    def loss(self, model: Model, x: Tensor, y: Tensor, moved: Tensor) -> Loss:
        """The loss, given the attacked points. The model is asked in the mode that it is in."""


def teacher_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """mean_i KL(f_θ0(x_i) ‖ f_θ(x_i)), a scalar, of two sets of logits (B, C); no temperature."""
    return kl_divergence(teacher.detach(), student).mean()
