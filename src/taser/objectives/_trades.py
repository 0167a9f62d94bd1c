"""TRADES (Zhang et al., 2019): accuracy on the data, constancy around them."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from taser import attacks
from taser._tensors import full_precision
from taser.attacks import kl_divergence, kl_from
from taser.stein._model_state import eval_mode

from ._objective import Loss, Model, Objective, check_weight


def from_gaussian() -> attacks.PGD:
    """The attack of TRADES and MART: ten steps of 2/255, begun at x + 0.001·N(0, 1)."""
    return attacks.PGD(start="gaussian")


@dataclass(frozen=True)
class TRADES(Objective):
    """mean_i CE(f(x_i), y_i) + β·KL(p(x_i) ‖ p(x'_i)), x' the point that raises the KL most.

    As the authors' code has it: the gradient flows through both sides of the KL, and the attack
    starts a little beside x, where the KL has a gradient.
    """

    beta: float = 6.0
    inner: attacks.PGD = field(default_factory=from_gaussian)

    def __post_init__(self) -> None:
        check_weight("beta", self.beta)

    def attack(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Points where the prediction differs most from that at x."""
        with eval_mode(model, freeze=True), torch.no_grad():
            clean = model(x.clone())  # a copy: it may begin in place
        return self.inner(model, x, y, loss=kl_from(clean), generator=generator)

    def loss(self, model: Model, x: Tensor, y: Tensor, moved: Tensor) -> Loss:
        """CE + β·KL, means over the batch."""
        clean, attacked = full_precision(model(x)), full_precision(model(moved))
        natural = F.cross_entropy(clean, y)
        robust = kl_divergence(clean, attacked).mean()
        parts = {"natural": natural.detach(), "robust": robust.detach()}
        return Loss(natural + self.beta * robust, parts, clean, attacked)
