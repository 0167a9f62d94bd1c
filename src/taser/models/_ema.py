"""An exponential moving average of a network's weights."""

import copy

import torch
from torch import nn


class EMA:
    """θ̄ ← d·θ̄ + (1 − d)·θ after each step, in `.model`; its buffers are the latest ones.

    d = min(decay, (1 + n)/(10 + n)) at step n, so that the first weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, n: int) -> None:
        """Move the average towards `model`, after step n."""
        d = min(self.decay, (1 + n) / (10 + n))
        for average, latest in zip(self.model.parameters(), model.parameters(), strict=True):
            average.lerp_(latest, 1 - d)
        for buffer, now in zip(self.model.buffers(), model.buffers(), strict=True):
            buffer.copy_(now)
