"""One batch of examples."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """x: (B, *); y: (B,); s: the score field, like x, or None; index: (B,) rows of the split.

    Can be taken apart: x, y, s, index = batch.
    """

    x: Tensor
    y: Tensor
    s: Tensor | None
    index: Tensor

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter((self.x, self.y, self.s, self.index))

    def __repr__(self) -> str:
        scores = "no scores" if self.s is None else "with scores"
        return f"Batch({len(self.x)} inputs of shape {tuple(self.x.shape[1:])}, {scores})"
