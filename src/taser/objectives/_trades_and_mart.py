"""Objectives that compare the predictions at x and at the attacked point: TRADES and MART."""

from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from taser import attacks
from taser._runtime import full_precision
from taser.attacks import Attack, LossAttack
from taser.probes import kl_divergence, kl_from
from taser.stein._model_state import eval_mode, outputs_of

from ._objective import Loss, Model, Objective, check_loss_attack


def from_gaussian() -> attacks.PGD:
    """The attack of TRADES and MART: ten steps of 2/255 from x + 0.001·N(0, 1)."""
    return attacks.PGD(start="gaussian")


@dataclass(frozen=True)
class TRADES(Objective):
    """mean_i CE(f(x_i), y_i) + β·KL(p(x_i) ‖ p(x'_i)), x' the point that raises the KL most.

    Zhang et al. (2019). As in the authors' code, the gradient flows through both sides of the KL,
    and the attack starts near x, where the KL has a gradient. That code evaluates the network at x
    twice, so here too BatchNorm's running statistics count x twice.
    """

    start: ClassVar[Literal["random", "gaussian"]] = "gaussian"
    keys: ClassVar[dict[str, str]] = {"beta": "beta"}
    beta: float = 6.0
    inner: LossAttack = field(default_factory=from_gaussian)
    label_smoothing: float = 0.0  # in the CE

    def __post_init__(self) -> None:
        _check_weight("beta", self.beta)
        self.check_task()
        check_loss_attack(self.inner, "TRADES")

    def attack(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Points where the prediction differs most from the one at x."""
        with eval_mode(model, freeze=True), torch.no_grad():
            clean = outputs_of(model, x.clone())  # a copy: it may begin in place
        return self.inner(model, x, y, loss=kl_from(clean), generator=generator)

    def loss(self, model: Model, x: Tensor, y: Tensor, x_adv: Tensor) -> Loss:
        """CE + β·KL, means over the batch."""
        clean, attacked = (full_precision(outputs_of(model, points)) for points in (x, x_adv))
        natural = F.cross_entropy(clean, y, label_smoothing=self.label_smoothing)
        parts = model.modules() if isinstance(model, nn.Module) else ()
        if any(isinstance(part, _BatchNorm) and part.training for part in parts):
            with torch.no_grad():
                model(x)
        robust = kl_divergence(clean, attacked).mean()
        found = {"natural": natural.detach(), "robust": robust.detach()}
        return Loss(natural + self.beta * robust, found, clean, attacked)


@dataclass(frozen=True)
class MART(Objective):
    """mean_i BCE(p(x'_i), y_i) + λ·KL(p(x_i) ‖ p(x'_i))·(1 − p_y(x_i)).

    Wang et al. (2020). BCE is the cross-entropy boosted by −log(1 − max_{j≠y} p_j). The small
    constants are those of the authors' code.
    """

    start: ClassVar[Literal["random", "gaussian"]] = "gaussian"
    keys: ClassVar[dict[str, str]] = {"weight": "mart_weight"}
    weight: float = 5.0
    inner: Attack = field(default_factory=from_gaussian)
    label_smoothing: float = 0.0  # in the cross-entropy of the BCE

    def __post_init__(self) -> None:
        _check_weight("weight", self.weight)
        self.check_task()

    def loss(self, model: Model, x: Tensor, y: Tensor, x_adv: Tensor) -> Loss:
        """BCE + λ·(weighted KL), means over the batch."""
        clean, attacked = (full_precision(outputs_of(model, points)) for points in (x, x_adv))
        p, q = clean.softmax(1), attacked.softmax(1)
        own = p.gather(1, y[:, None])[:, 0]
        rival = q.masked_fill(F.one_hot(y, q.shape[1]).bool(), -1.0).amax(1)
        entropy = F.cross_entropy(attacked, y, label_smoothing=self.label_smoothing)
        boosted = entropy - (1.0001 - rival + 1e-12).log().mean()
        # log p by log_softmax: where p rounds to zero, F.kl_div has no gradient.
        difference = (p * (clean.log_softmax(1) - (q + 1e-12).log())).sum(1)
        weighted = (difference * (1.0000001 - own)).mean()
        parts = {"boosted": boosted.detach(), "robust": weighted.detach()}
        return Loss(boosted + self.weight * weighted, parts, clean, attacked)


def _check_weight(name: str, weight: float) -> None:
    if not 0 <= weight < inf:
        raise ValueError(f"{name} should be zero or more, and finite; got {weight}")
