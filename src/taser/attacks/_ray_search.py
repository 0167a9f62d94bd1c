"""RayS (Chen & Gu, 2020): an ℓ∞ attack by the predicted class alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice

import torch
from torch import Tensor

from taser._tensors import rows_like
from taser.stein._model_state import eval_mode

from ._attack import Model, Threat, check_positive

BISECTIONS = 10  # a radius to a thousandth of the box


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
        check_positive(self, "trials")

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Attacked inputs, (B, *), detached: x itself where no ray within ε was found. y: (B,)."""
        del generator  # nothing is drawn
        x = x.detach()
        flat = x.flatten(1)
        direction = torch.ones_like(flat)
        low, high = self.threat.box_around(x)
        radius = flat.new_full((len(x),), high - low)

        def is_wrong(rows: Tensor, direction: Tensor, radius: Tensor) -> Tensor:
            """Whether the class is wrong there. (R,), (R, D), (R,) → (R,)."""
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
                # The smallest radius with a wrong class, between zero and one where it is wrong.
                lower, upper = torch.zeros_like(radius[rows]), radius[rows]
                for _ in range(BISECTIONS if len(rows) else 0):
                    middle = (lower + upper) / 2
                    wrong = is_wrong(rows, flipped, middle)
                    lower = torch.where(wrong, lower, middle)
                    upper = torch.where(wrong, middle, upper)
                radius[rows] = upper
        found = crosses & (radius <= self.threat.epsilon)
        moved = self.threat.project((flat + radius[:, None] * direction).view_as(x), x)
        return torch.where(rows_like(found, x), moved, x)


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    """The whole, its halves, its quarters, … down to single entries, and again from the start."""
    lengths = [-(-size // 2**halvings) for halvings in range((2 * size - 1).bit_length())]
    return cycle((s, s + length) for length in lengths for s in range(0, size, length))
