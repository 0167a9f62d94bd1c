"""The worst point found so far for each example, and which examples still stand."""

import torch
from torch import Tensor

from .losses import margin
from .protocol import Model


class Worst:
    """Keeps the best iterate of an attack, by the margin loss max_{j≠y} z_j − z_y.

    x: (B, *), the points; loss: (B,), positive where the model errs. The clean examples are the
    first points offered, so an attack that starts here never returns anything milder.
    """

    def __init__(self, model: Model, x: Tensor, y: Tensor) -> None:
        self.x = x.detach().clone()
        self.y = y
        with torch.no_grad():
            self.loss = margin(model(self.x.clone()), y)  # a first layer may work in place

    @property
    def standing(self) -> Tensor:
        """The rows that are not broken yet: what an attack has left to do."""
        return (~(self.loss > 0)).nonzero()[:, 0]

    def offer(self, rows: Tensor, moved: Tensor, logits: Tensor) -> Tensor:
        """Keep the points that are worse than what there was; True where a row still stands.

        rows: (R,) numbers of examples; moved: (R, *) points; logits: (R, C), the model's answer.
        """
        loss = margin(logits.detach(), self.y[rows])
        worse = loss > self.loss[rows]
        self.x[rows[worse]] = moved.detach()[worse]
        self.loss[rows[worse]] = loss[worse]
        return ~(loss > 0)
