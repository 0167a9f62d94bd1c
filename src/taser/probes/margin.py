"""The smooth logit margin: the probe of the paper's classifiers."""

import torch
from torch import Tensor

from .checks import check_logits
from .precision import full_precision


class Margin:
    """m(x; y) = LSE_{j≠y} z_j − z_y: negative where the network is right, and how far.

    A smooth form of max_{j≠y} z_j − z_y. Half-precision logits are taken to float32 first.

    >>> import torch
    >>> Margin()(torch.tensor([[2.0, -1.0]]), torch.tensor([0]))  # two classes: z_1 − z_0
    tensor([-3.])
    """

    def __init__(self) -> None:
        self._checked = False

    def __call__(self, z: Tensor, y: Tensor | None) -> Tensor:
        """z: (B, C) logits; y: (B,) labels; returns (B,)."""
        if y is None:
            raise ValueError("Margin compares the labelled class with the rest: it needs labels y")
        if not self._checked or z.device.type == "cpu":  # reading back stalls an accelerator
            check_logits(z, y, "Margin")
            self._checked = True
        z = full_precision(z)
        index = y.long()[:, None]
        others = z.scatter(1, index, -torch.inf).logsumexp(1)
        return others - z.gather(1, index).squeeze(1)

    def __repr__(self) -> str:
        return "Margin()"
