"""What every attack is, the losses that attacks ascend, and attacks one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taser._tensors import full_precision
from taser.stein._model_state import eval_mode

from ._threat import Threat

Model = Callable[[Tensor], Tensor]
"""(B, *) → logits (B, C)."""

AttackLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, y) → (B,): larger is worse for the model."""


@runtime_checkable
class Attack(Protocol):
    """A search for a wrong answer inside a threat's ball; yours needs no base class.

    name: what tables and records call it. An attack that notices something odd about the model
    warns with an :class:`AttackWarning`. It may have `passes`, the forward passes that an example
    costs at most, which progress and the time left are estimated from.
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


@runtime_checkable
class LossAttack(Attack, Protocol):
    """An attack that ascends a loss of the caller's choice: PGD, FGSM, RestartedPGD.

    loss: what it ascends where the call names no other. Objectives whose inner maximum is not that
    of the cross-entropy, such as TRADES, need one of these.
    """

    @property
    def loss(self) -> AttackLoss: ...

    def __call__(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        loss: AttackLoss | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The attacked inputs, (B, *), detached. x: (B, *); y: (B,)."""
        ...


class AttackWarning(UserWarning):
    """Something about a model that makes an attack's result doubtful."""


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """CE(z, y). logits: (B, C) → (B,)."""
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{j≠y} z_j − z_y: positive when the model errs; unlike CE it cannot saturate. (B,)."""
    own = logits.gather(1, y[:, None])[:, 0]
    others = logits.masked_fill(F.one_hot(y, logits.shape[1]).bool(), -torch.inf)
    return others.amax(1) - own


def kl_divergence(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """KL(softmax(p) ‖ softmax(q)) of each example, in full precision: (B, C), (B, C) → (B,)."""
    p, q = (full_precision(logits).log_softmax(1) for logits in (p_logits, q_logits))
    return (p.exp() * (p - q)).sum(1)


def kl_from(clean: Tensor) -> AttackLoss:
    """KL(softmax(clean) ‖ softmax(z)), the loss that TRADES attacks. clean: (B, C) logits."""
    clean = clean.detach()

    def loss(logits: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001 — labels do not matter here
        return kl_divergence(clean, logits)

    return loss


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """(f(x) − y)², averaged over what is predicted for one example. (B,)."""
    return (outputs.reshape(y.shape) - y).square().reshape(len(y), -1).mean(1)


class WorstPoints:
    """The worst points found so far, by the margin loss max_{j≠y} z_j − z_y.

    x: (B, *), the points; loss: (B,), positive where the model errs. The clean examples are the
    first points, so an attack that starts here never returns anything milder.
    """

    def __init__(self, model: Model, x: Tensor, y: Tensor) -> None:
        self.x = x.detach().clone()
        self.y = y
        with torch.no_grad():
            self.loss = margin(model(self.x.clone()), y)  # a first layer may work in place

    @property
    def unbroken(self) -> Tensor:
        """The numbers of the examples that the model still gets right."""
        return (~(self.loss > 0)).nonzero()[:, 0]

    def update(self, rows: Tensor, moved: Tensor, logits: Tensor) -> Tensor:
        """Keep the points that are worse than those before; True where a row is still unbroken.

        rows: (R,) numbers of examples; moved: (R, *) points; logits: (R, C), the model's output.
        """
        loss = margin(logits.detach(), self.y[rows])
        worse = loss > self.loss[rows]
        self.x[rows[worse]] = moved.detach()[worse]
        self.loss[rows[worse]] = loss[worse]
        return ~(loss > 0)


@dataclass(frozen=True)
class Cascade:
    """Attacks one after the other, each on the examples that the earlier ones did not break.

    note: what a reader of its results should know.
    """

    name: str
    stages: Sequence[Attack]
    note: str = ""

    def __post_init__(self) -> None:
        if len({stage.threat for stage in self.stages}) != 1:
            raise ValueError("a cascade needs stages, all with one threat")

    @property
    def threat(self) -> Threat:
        """The ball that all stages share."""
        return self.stages[0].threat

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Attacked inputs, (B, *), detached. y: (B,)."""
        found = x.detach().clone()
        with eval_mode(model, freeze=True), torch.no_grad():
            for stage in self.stages:
                rows = (model(found.clone()).argmax(1) == y).nonzero()[:, 0]
                if len(rows):
                    found[rows] = stage(model, x[rows], y[rows], generator=generator)
        return found


def stages_of(attack: Attack) -> Sequence[Attack]:
    """The stages of a cascade; any other attack is its own only stage."""
    return attack.stages if isinstance(attack, Cascade) else (attack,)


@dataclass(frozen=True)
class UnitBox:
    """u = (x − low)/(high − low), which is x itself for pixels in [0, 1].

    Where the threat has no bounds, `low` and `high` lie ε beyond the data: they never bind.
    """

    low: float
    high: float

    @classmethod
    def around(cls, threat: Threat, x: Tensor) -> Self:
        """The box of this threat, or one wide enough for every point in reach of x."""
        low = float(x.min()) - threat.epsilon if threat.low is None else threat.low
        high = float(x.max()) + threat.epsilon if threat.high is None else threat.high
        return cls(low, high)

    @property
    def width(self) -> float:
        """high − low."""
        return self.high - self.low

    def into(self, x: Tensor) -> Tensor:
        """x → u."""
        return x if (self.low, self.high) == (0.0, 1.0) else (x - self.low) / self.width

    def back(self, u: Tensor) -> Tensor:
        """u → x."""
        return u if (self.low, self.high) == (0.0, 1.0) else u * self.width + self.low

    def model(self, model: Model, dtype: torch.dtype) -> Model:
        """The model as a function of u, in single precision as the package wants it.

        dtype: what the model itself takes; it gets a copy, for its first layer may work in place.
        """
        return lambda u: model(self.back(u.to(dtype)).clone()).float()

    def threat(self, threat: Threat) -> Threat:
        """The same ball, in u's units."""
        return replace(threat, epsilon=threat.epsilon / self.width, low=0.0, high=1.0)


def short_repr(attack: Any) -> str:
    """An attack's class and options; a function is shown by its name, a network by its class.

    >>> from taser.attacks import FGSM, Threat
    >>> repr(FGSM(Threat("linf", 0.1)))[-32:]
    "loss=cross_entropy, name='fgsm')"
    """

    def shown(value: Any) -> str:
        if isinstance(value, nn.Module):
            return type(value).__name__
        return getattr(value, "__qualname__", None) or repr(value)

    options = ", ".join(f"{f.name}={shown(getattr(attack, f.name))}" for f in fields(attack))
    return f"{type(attack).__name__}({options})"
