"""Adversarial weight perturbation (Wu et al., 2020), around any objective."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from taser._runtime import world_size
from taser.stein._model_state import restored_buffers, unwrap_ddp

from ._objective import Objective

TINY = 1e-20  # from the authors' code


@dataclass(frozen=True)
class AWP:
    """Take the optimiser's step at weights that are perturbed so that the loss rises.

    Each parameter w of more than one dimension with "weight" in its name, as in the authors' code,
    moves by γ·‖w‖·g/‖g‖, g the gradient in w of the loss at the attacked points; biases,
    normalisations and position embeddings do not move. The move is undone at the end of the block,
    so call the optimiser's step inside it:

        with awp(model, x, y) as loss:
            optimiser.zero_grad(); loss.backward(); optimiser.step()
    """

    objective: Objective
    gamma: float = 0.005

    def __post_init__(self) -> None:
        if not self.gamma > 0:
            raise ValueError(f"gamma should be positive; got {self.gamma}")

    @contextmanager
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Iterator[Tensor]:
        """The loss at the perturbed weights; the end of the block restores the weights."""
        x_adv = self.objective.attack(model, x, y, generator=generator)
        with perturbed(model, [lambda m: self.objective.loss(m, x, y, x_adv).total], self.gamma):
            yield self.objective.loss(model, x, y, x_adv).total


@contextmanager
def perturbed(
    model: nn.Module, losses: Sequence[Callable[[nn.Module], Tensor]], gamma: float
) -> Iterator[None]:
    """The model with each weight moved by γ·‖w‖·g/‖g‖, g = ∇_w Σ losses(model), and moved back.

    The authors compute g on a proxy copy; here on the model itself, with its running statistics
    restored, which gives the same g without a second set of weights. With several processes g is
    the mean over them, so that all move alike.
    """
    module = unwrap_ddp(model)
    assert isinstance(module, nn.Module)
    named = [(name, w) for name, w in module.named_parameters() if w.requires_grad and w.ndim > 1]
    weights = [w for name, w in named if "weight" in name]
    if not weights:
        names = ", ".join(name for name, _ in named[:3]) or "none"
        raise ValueError(
            "AWP perturbs trainable parameters of more than one dimension with 'weight' in their "
            f"name; this model has none (of more than one dimension: {names})"
        )
    moves = _moves(weights, _ascent(module, weights, losses), gamma)
    with torch.no_grad():
        for weight, move in zip(weights, moves, strict=True):
            weight.add_(move)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, move in zip(weights, moves, strict=True):
                weight.sub_(move)


def _ascent(
    module: nn.Module, weights: list[nn.Parameter], losses: Sequence[Callable[[nn.Module], Tensor]],
) -> list[Tensor]:  # fmt: skip
    totals = [torch.zeros_like(weight) for weight in weights]
    for loss in losses:
        with torch.enable_grad(), restored_buffers(module):
            gradients = torch.autograd.grad(
                loss(module), weights, allow_unused=True, materialize_grads=True
            )
        for total, gradient in zip(totals, gradients, strict=True):
            total.add_(gradient)
    if world_size() > 1:
        for total in totals:
            dist.all_reduce(total)  # sum suffices: the move is normalised by ‖g‖
    return totals


def _moves(weights: list[nn.Parameter], gradients: list[Tensor], gamma: float) -> list[Tensor]:
    """γ·‖w‖·g/‖g‖. Non-finite entries are set to zero, or they would corrupt the weights."""
    finite = [g.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for g in gradients]
    return [
        (gamma * w.detach().norm() / (g.norm() + TINY)) * g
        for w, g in zip(weights, finite, strict=True)
    ]
