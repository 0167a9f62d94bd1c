"""The protocols of attacks, and the worst points that an attack has found so far."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from taser.probes import AttackLoss, margin, task_loss
from taser.stein._model_state import outputs_of

from ._threat import Rng, Threat

Model = Callable[[Tensor], Tensor]
"""(B, *) → logits (B, C)."""


@runtime_checkable
class Attack(Protocol):
    """A search for a wrong answer inside a threat's ball; your attack needs no base class.

    name: its name in records. It may warn with :class:`AttackWarning`s. An optional `passes` is the
    largest number of forward passes for an example, a backward pass counting two, for progress.
    """

    @property
    def name(self) -> str: ...

    @property
    def threat(self) -> Threat: ...

    def __call__(self, model: Model, x: Tensor, y: Tensor, *, generator: Rng = None) -> Tensor:
        """Adversarial inputs, (B, *), detached. x: (B, *); y: (B,), class numbers."""


@runtime_checkable
class LossAttack(Attack, Protocol):
    """An attack that takes a loss to ascend, by default its `loss`: PGD, FGSM, …"""

    @property
    def loss(self) -> AttackLoss: ...

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *,
        loss: AttackLoss | None = None, generator: Rng = None,
    ) -> Tensor:  # fmt: skip
        """Adversarial inputs, (B, *), detached. x: (B, *); y: (B,)."""


class AttackWarning(UserWarning):
    """Something about a model that makes an attack's result doubtful."""


class WorstPoints:
    """The worst points found so far, x: (B, *), and their margin loss, (B,); x itself at first.

    In regression the loss is the squared error, and no example is dropped early, since any error
    can grow. For a randomised model (`draws`) examples are never dropped early.
    """

    def __init__(self, model: Model, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x.detach().clone(), y
        self.measure = task_loss(margin, y)
        lasting = hasattr(model, "draws") or y.is_floating_point()
        self.enough = torch.inf if lasting else 0.0
        with torch.no_grad():
            start = self.x.clone()  # a first layer may work in place
            self.loss = self.measure(outputs_of(model, start), y)

    robust = property(lambda self: (~(self.loss > self.enough)).nonzero()[:, 0])

    def update(self, rows: Tensor, x_adv: Tensor, logits: Tensor) -> Tensor:
        """Keep worse points, (R, *), of the examples `rows`; True where one is still robust."""
        loss = self.measure(logits.detach(), self.y[rows])
        worse = loss > self.loss[rows]
        self.x[rows[worse]] = x_adv.detach()[worse]
        self.loss[rows[worse]] = loss[worse]
        return ~(loss > self.enough)


def short_repr(attack: Any) -> str:
    """An attack's class and options; a function is shown by its name, a network by its class."""
    values = {f.name: getattr(attack, f.name) for f in fields(attack) if f.init}
    named = {k: type(v) if isinstance(v, nn.Module) else v for k, v in values.items()}
    options = (f"{k}={getattr(v, '__qualname__', None) or repr(v)}" for k, v in named.items())
    return f"{type(attack).__name__}({', '.join(options)})"


def check_positive(attack: Any, *options: str) -> None:
    """Raise unless each of these options is positive and finite; None is for a default."""
    for option in options:
        value = getattr(attack, option)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{option} should be positive and finite; got {value}")
