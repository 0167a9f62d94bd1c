"""λ in a unit that transfers: how large the penalty's gradient is beside the loss's own."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from taser.objectives import Regulariser, Taser
from taser.stein.guards import kept_buffers
from taser.stein.part import processes

from .step import Learner


def gradient_ratio(
    learner: Learner, x: Tensor, y: Tensor, s: Tensor | None, generator: torch.Generator
) -> float:
    """‖∇_θ L_base‖ / ‖∇_θ R‖ on one batch: λ = ρ times this makes the two ρ : 1.

    Of a batch that is taken in parts, on the first of them, since the whole may not fit in memory.
    """
    module, objective, regulariser = learner.module, learner.objective, learner.regulariser
    assert regulariser is not None
    first = slice(-(-len(x) // learner.parts))
    x, y, s = x[first], y[first], None if s is None else s[first]
    moved = objective.attack(module, x, y, generator=generator)
    with kept_buffers(module):
        base = gradient_norm(module, objective.loss(module, x, y, moved).total)
    with _whole(regulariser):
        penalty = gradient_norm(module, regulariser(module, x, y, s, generator=generator))
    return base / penalty if penalty > 0 else 0.0


@contextmanager
def _whole(regulariser: Regulariser) -> Iterator[None]:
    """R itself: in evaluation mode of the whole batch, in each call, and a running centre stays."""
    penalty = regulariser.penalty if isinstance(regulariser, Taser) else regulariser
    assert isinstance(penalty, nn.Module)
    try:
        penalty.eval()
        yield
    finally:
        penalty.train()


def gradient_norm(model: nn.Module, value: Tensor) -> float:
    """‖∇_θ value‖ over all parameters, of the mean over processes."""
    if not value.requires_grad:
        return 0.0
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    if processes() > 1:
        dist.all_reduce(flat)
        flat /= processes()
    return float(flat.norm())
