"""An average of the weights over training."""

import copy

import torch
from torch import nn


class Average:
    """θ̄ ← d·θ̄ + (1 − d)·θ after each step; buffers are those of the model.

    Early on d is smaller, (1 + t)/(10 + t), so that the first weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """After the step with number `step`, counted from zero."""
        keep = min(self.decay, (1 + step) / (10 + step))
        for slow, fast in zip(self.model.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast, 1 - keep)
        for held, latest in zip(self.model.buffers(), model.buffers(), strict=True):
            held.copy_(latest)
