"""RayS (Chen & Gu, 2020): an ℓ∞ attack by the predicted class alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from taser._tensors import rows_like
from taser.stein._model_state import eval_mode

from ._attack import Model, UnitBox
from ._threat import Threat

BISECTIONS = 10  # a radius to a thousandth of the box

IsWrong = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(rows (R,), directions (R, D), radii (R,)) → (R,): whether the class is wrong there."""


@dataclass(frozen=True)
class RaySearch:
    """min_d r(d) over d ∈ {−1, 1}^D, r(d) the distance along d at which the class changes.

    The signs of blocks of d are flipped, first of the whole, then of halves, quarters, …; a flip
    is kept if the class at the present radius is still wrong, and bisection finds the new radius.
    That takes one query for each of `trials` flips, and ten more for each flip that is kept.
    """

    threat: Threat = field(default_factory=Threat)
    trials: int = 1000
    name: str = "ray search"

    def __post_init__(self) -> None:
        if self.threat.norm != "linf":
            raise ValueError(f"ray search is made for ℓ∞; got {self.threat}")
        if self.trials < 1:
            raise ValueError(f"trials should be at least 1; got {self.trials}")

    def __call__(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator | None = None,  # noqa: ARG002 — nothing is drawn
    ) -> Tensor:
        """Attacked inputs, (B, *), detached: x itself where no ray within ε was found. y: (B,)."""
        x = x.detach()
        flat = x.flatten(1)
        direction = torch.ones_like(flat)
        radius = flat.new_full((len(x),), UnitBox.around(self.threat, x).width)

        def is_wrong(rows: Tensor, direction: Tensor, radius: Tensor) -> Tensor:
            moved = self.threat.into_box(flat[rows] + radius[:, None] * direction)
            return model(moved.view(-1, *x.shape[1:])).argmax(1) != y[rows]

        with eval_mode(model, freeze=True), torch.no_grad():
            everyone = torch.arange(len(x), device=x.device)
            crosses = is_wrong(everyone, direction, radius)  # does the class change along d?
            for start, end in islice(_blocks(flat.shape[1]), self.trials):
                rows = everyone[~(crosses & (radius <= self.threat.epsilon))]
                if len(rows) == 0:
                    break
                flipped = direction[rows]
                flipped[:, start:end] *= -1
                keep = is_wrong(rows, flipped, radius[rows])
                rows, flipped = rows[keep], flipped[keep]
                direction[rows], crosses[rows] = flipped, True
                radius[rows] = _bisect(is_wrong, rows, flipped, radius[rows])
        found = crosses & (radius <= self.threat.epsilon)
        moved = self.threat.project((flat + radius[:, None] * direction).view_as(x), x)
        return torch.where(rows_like(found, x), moved, x)


def _bisect(is_wrong: IsWrong, rows: Tensor, direction: Tensor, high: Tensor) -> Tensor:
    """The smallest radius with a wrong class found between zero and `high`, where it is wrong."""
    low = torch.zeros_like(high)
    for _ in range(BISECTIONS if len(rows) else 0):
        middle = (low + high) / 2
        wrong = is_wrong(rows, direction, middle)
        low, high = torch.where(wrong, low, middle), torch.where(wrong, middle, high)
    return high


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    """The whole, its halves, its quarters, … down to single entries, and again from the start."""
    while True:
        parts = 1
        while parts < 2 * size:
            length = -(-size // parts)
            yield from ((start, start + length) for start in range(0, size, length))
            parts *= 2
