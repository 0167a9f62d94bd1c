"""Adversarial weight perturbation (Wu et al., 2020), around any objective."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from taser.stein.guards import unwrapped

from .objective import Objective

TINY = 1e-20  # of the authors' code


@dataclass(frozen=True)
class AWP:
    """Take the step at weights that were moved, by γ of their size, to where the loss is higher.

    Each tensor w of more than one dimension moves by γ·‖w‖·g/‖g‖, g its gradient of the loss at
    the attacked points; biases and normalisations stay. The move is taken back after the
    optimiser's step, so it must be left after that:

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
        """The loss at the perturbed weights; the weights are put back at the end of the block."""
        moved = self.objective.attack(model, x, y, generator=generator)
        with perturbed(model, lambda m: self.objective.loss(m, x, y, moved).total, self.gamma):
            yield self.objective.loss(model, x, y, moved).total


@contextmanager
def perturbed(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], gamma: float
) -> Iterator[None]:
    """The model with each weight moved by γ·‖w‖·g/‖g‖, g = ∇_w loss(model), and moved back.

    The authors compute g on a proxy copy; here the model is its own proxy, and its running
    statistics are put back, which gives the same g without a second set of weights. Over several
    processes g is the mean, so that all move alike.
    """
    module = unwrapped(model)
    assert isinstance(module, nn.Module)
    weights = [w for w in module.parameters() if w.requires_grad and w.ndim > 1]
    moves = _moves(weights, _ascent(module, weights, loss), gamma)
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
    module: nn.Module, weights: list[nn.Parameter], loss: Callable[[nn.Module], Tensor]
) -> list[Tensor]:
    statistics = [(buffer, buffer.clone()) for buffer in module.buffers()]
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss(module), weights, allow_unused=True)
    with torch.no_grad():
        for buffer, before in statistics:
            buffer.copy_(before)
    found = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, gradients)]  # noqa: B905
    if dist.is_available() and dist.is_initialized():
        for gradient in found:
            dist.all_reduce(gradient)  # a sum: the scaling below takes the rest out
    return found


def _moves(weights: list[nn.Parameter], gradients: list[Tensor], gamma: float) -> list[Tensor]:
    return [
        (gamma * w.detach().norm() / (g.norm() + TINY)) * g
        for w, g in zip(weights, gradients, strict=True)
    ]
