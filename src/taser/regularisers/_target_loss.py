"""Adapt λ so that the training loss stays near a target."""

import math

import torch
from torch import Tensor

from taser._runtime import all_sum, world_size


class TargetLoss:
    """λ that rises while the training loss is below `target`, and falls while it is above.

    This approximates the smallest penalty whose training loss is `target`: one chooses an
    acceptable loss instead of searching λ. At each call

        log λ ← log λ + rate · (1 − loss/target), the bracket clipped to [−1, 1], and λ ≥ start.

    >>> import torch, taser
    >>> model, x, y = torch.nn.Linear(4, 3), torch.rand(8, 4), torch.arange(8) % 3
    >>> penalty, weight = taser.regularisers.GradientNorm("l1"), TargetLoss(0.5)
    >>> loss = torch.nn.functional.cross_entropy(model(x), y)
    >>> loss = loss + weight(loss) * penalty(model, x, y)

    target
        For a classifier the cross-entropy without the penalty, such as 1.0 on CIFAR-10.
    start
        The first λ, and the smallest.
    rate
        With 0.01 a loss that is 20 % below its target doubles λ in 350 steps.
    weight
        The current λ; save it with a checkpoint and restore it when resuming.
    """

    def __init__(self, target: float, *, start: float = 0.01, rate: float = 0.01) -> None:
        for name, value in {"target": target, "start": start, "rate": rate}.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} should be a positive number; got {value}")
        self.target, self.start, self.rate = target, start, rate
        self.weight = start

    def __call__(self, loss: Tensor | float) -> float:
        """λ after a step towards the target. loss: the batch's, a scalar, without the penalty."""
        mean = float(all_sum(torch.as_tensor(loss).detach().clone()) / world_size())
        if math.isfinite(mean):
            gap = min(1.0, max(-1.0, 1 - mean / self.target))
            self.weight = max(self.start, self.weight * math.exp(self.rate * gap))
        return self.weight

    def __repr__(self) -> str:
        return f"TargetLoss({self.target:g}, weight={self.weight:.3g})"
