"""MART (Wang et al., 2020): adversarial training that weighs the examples by their difficulty."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from taser import attacks
from taser._tensors import full_precision

from ._objective import Loss, Model, Objective, check_weight
from ._trades import from_gaussian


@dataclass(frozen=True)
class MART(Objective):
    """mean_i BCE(p(x'_i), y_i) + λ·KL(p(x_i) ‖ p(x'_i))·(1 − p_y(x_i)).

    BCE is the cross-entropy boosted by −log(1 − max_{j≠y} p_j). The small constants are those of
    the authors' code.
    """

    weight: float = 5.0
    inner: attacks.PGD = field(default_factory=from_gaussian)

    def __post_init__(self) -> None:
        check_weight("weight", self.weight)

    def attack(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Points that raise the cross-entropy."""
        return self.inner(model, x, y, generator=generator)

    def loss(self, model: Model, x: Tensor, y: Tensor, moved: Tensor) -> Loss:
        """BCE + λ·(weighted KL), means over the batch."""
        clean, attacked = full_precision(model(x)), full_precision(model(moved))
        p, q = clean.softmax(1), attacked.softmax(1)
        own = p.gather(1, y[:, None])[:, 0]
        rival = q.masked_fill(F.one_hot(y, q.shape[1]).bool(), -1.0).amax(1)
        boosted = F.cross_entropy(attacked, y) - (1.0001 - rival + 1e-12).log().mean()
        # log p by log_softmax: where p rounds to zero, that of F.kl_div has no gradient.
        difference = (p * (clean.log_softmax(1) - (q + 1e-12).log())).sum(1)
        weighted = (difference * (1.0000001 - own)).mean()
        parts = {"boosted": boosted.detach(), "robust": weighted.detach()}
        return Loss(boosted + self.weight * weighted, parts, clean, attacked)
