"""Attacks without gradients: random noise, ray search, transfer; and attacks in a cascade."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import torch
from torch import Tensor

from taser._runtime import rows_like
from taser.stein._model_state import eval_mode

from ._attack import Attack, Model, Rng, Threat, WorstPoints, check_positive, short_repr

BISECTIONS = 10  # a radius to a thousandth of the box


@dataclass(frozen=True)
class RandomNoise:
    """The worst of `samples` random points, which any stronger attack should find as well."""

    threat: Threat = field(default_factory=Threat)
    samples: int = 100
    name: str = "noise"
    passes = property(lambda self: self.samples)

    def __post_init__(self) -> None:
        check_positive(self, "samples")

    def __call__(self, model: Model, x: Tensor, y: Tensor, *, generator: Rng = None) -> Tensor:
        with eval_mode(model, freeze=True), torch.no_grad():
            worst = WorstPoints(model, x, y)
            for _ in range(self.samples):
                rows = worst.unbroken
                if len(rows) == 0:
                    break
                moved = self.threat.random(x[rows], generator)
                worst.update(rows, moved, model(moved.clone()))  # which may work in place
        return worst.x


@dataclass(frozen=True)
class RaySearch:
    """min_d r(d) over d ∈ {−1, 1}^D, r(d) the distance along d at which the class changes.

    RayS (Chen & Gu, 2020), an ℓ∞ attack by the predicted class alone. The signs of d are flipped,
    first of all, then of halves, quarters, …, `trials` times; a flip is kept if the class at the
    present radius is still wrong, and bisection by ten queries finds the new radius.
    """

    threat: Threat = field(default_factory=Threat)
    trials: int = 1000
    name: str = "ray search"

    def __post_init__(self) -> None:
        if self.threat.norm != "linf":
            raise ValueError(f"ray search is made for ℓ∞; got {self.threat}")
        check_positive(self, "trials")

    def __call__(self, model: Model, x: Tensor, y: Tensor, *, generator: Rng = None) -> Tensor:
        """Attacked inputs, (B, *), detached: x itself where no ray within ε was found. y: (B,)."""
        del generator  # nothing is drawn
        x, flat = x.detach(), x.detach().flatten(1)
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
            size = flat.shape[1]
            widths = [-(-size // 2**halvings) for halvings in range((2 * size - 1).bit_length())]
            blocks = cycle((s, s + width) for width in widths for s in range(0, size, width))
            for start, end in islice(blocks, self.trials):
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


@dataclass(frozen=True, repr=False)
class Transfer:
    """The points that `attack` finds against `surrogate`, tried on the model.

    Where it beats a white-box attack, gradients are masked. :class:`LastingPGD` suits it: it does
    not stop where the surrogate errs.
    """

    attack: Attack
    surrogate: Model
    name: str = "transfer"
    __repr__ = short_repr
    threat = property(lambda self: self.attack.threat)
    passes = property(lambda self: getattr(self.attack, "passes", 1))

    def __call__(self, model: Model, x: Tensor, y: Tensor, *, generator: Rng = None) -> Tensor:
        del model  # the surrogate is attacked instead
        return self.attack(self.surrogate, x, y, generator=generator)


@dataclass(frozen=True)
class Cascade:
    """Attacks, each on the examples that the earlier ones did not break; note: for its reader."""

    name: str
    stages: Sequence[Attack]
    note: str = ""

    def __post_init__(self) -> None:
        if len({stage.threat for stage in self.stages}) != 1:
            raise ValueError("a cascade needs stages, all with one threat")

    threat = property(lambda self: self.stages[0].threat)

    def __call__(self, model: Model, x: Tensor, y: Tensor, *, generator: Rng = None) -> Tensor:
        found = x.detach().clone()
        with eval_mode(model, freeze=True), torch.no_grad():
            for stage in self.stages:
                rows = (model(found.clone()).argmax(1) == y).nonzero()[:, 0]
                if len(rows):
                    found[rows] = stage(model, x[rows], y[rows], generator=generator)
        return found


def stages_of(attack: Attack) -> Sequence[Attack]:
    """The stages of a cascade; any other attack is its own only stage."""
    return attack.stages if isinstance(attack, Cascade) else (attack,)
