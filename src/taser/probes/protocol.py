"""What a probe is, and the network seen through it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

Probe = Callable[[Tensor, Tensor | None], Tensor]
"""(outputs (B, *), labels (B,) or None) → (B,): any callable of this form will do."""


@dataclass(frozen=True)
class Probed:
    """The scalar function f(x) = probe(model(x), y) of a batch with labels y.

    Keeping model and probe apart lets an estimator use what it knows of each; keeping the labels
    lets it ask for several points of every example in one call: x may hold n·B rows, copies of
    the batch one after another, and the labels are repeated to match.
    """

    model: Callable[[Tensor], Tensor]
    probe: Probe
    y: Tensor | None = field(default=None, repr=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.probe(self.model(x), self.labels(len(x)))

    def labels(self, rows: int) -> Tensor | None:
        """The labels, repeated to `rows` rows."""
        if self.y is None:
            return None
        copies, rest = divmod(rows, len(self.y))
        if rest:
            raise ValueError(f"x has {rows} rows, which is no multiple of the {len(self.y)} labels")
        return self.y if copies == 1 else self.y.repeat(copies, *[1] * (self.y.ndim - 1))
