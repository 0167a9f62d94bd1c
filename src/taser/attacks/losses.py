"""What an attack tries to raise, one number for each example."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from taser.probes.precision import full_precision

AttackLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, y) → (B,): larger is worse for the model."""


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
