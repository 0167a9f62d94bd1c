"""One logit."""

from torch import Tensor

from .checks import check_logits
from .precision import full_precision


class Logit:
    """z_k for a fixed class k = `index`, or the labelled class z_y when `index` is None."""

    def __init__(self, index: int | None = None) -> None:
        if index is not None and index < 0:
            raise ValueError(f"index should be a class number, 0 or more; got {index}")
        self.index = index
        self._checked = False

    def __call__(self, z: Tensor, y: Tensor | None) -> Tensor:
        """z: (B, C) logits; y: (B,) labels, unused with a fixed index; returns (B,)."""
        if self.index is None and y is None:
            raise ValueError("Logit() reads the labelled class: give labels y, or an index")
        if not self._checked or z.device.type == "cpu":  # reading back stalls an accelerator
            check_logits(z, y if self.index is None else None, "Logit")
            if self.index is not None and self.index >= z.shape[1]:
                raise ValueError(f"Logit({self.index}) of a model with {z.shape[1]} classes")
            self._checked = True
        z = full_precision(z)
        if self.index is not None:
            return z[:, self.index]
        assert y is not None
        return z.gather(1, y.long()[:, None]).squeeze(1)

    def __repr__(self) -> str:
        return f"Logit({'' if self.index is None else self.index})"
