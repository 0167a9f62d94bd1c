"""Random noise, ray search (RayS), transfer from a surrogate, and cascades of attacks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import torch
from torch import Tensor

from taser._runtime import rows_like
from taser.stein._model_state import eval_mode, outputs_of

from ._attack import Attack, Model, WorstPoints, check_positive, short_repr
from ._threat import Rng, Threat

BISECTIONS = 10  # a radius to a thousandth of the box


@dataclass(frozen=True)
class RandomNoise:
    """The worst of `samples` random points: a baseline for every other attack."""

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
                rows = worst.robust
                if len(rows) == 0:
                    break
                x_adv = self.threat.random(x[rows], generator)
                worst.update(rows, x_adv, model(x_adv.clone()))  # which may work in place
        return worst.x


@dataclass(frozen=True)
class RaySearch:
    """min_d r(d) over d ∈ {−1, 0, 1}^D, r(d) the distance along d at which the class changes.

    RayS (Chen & Gu, 2020), an attack by the predicted class alone. The signs of d are flipped in
    blocks (all coordinates, halves, quarters, …), `trials` times. A flip is kept if the class at
    the current distance is still wrong; bisection by ten queries then finds the new distance. In ℓ2
    and ℓ1, where d has unit length, the second half of the trials sets blocks to zero instead.
    """

    threat: Threat = field(default_factory=Threat)
    trials: int = 1000
    name: str = "ray search"

    passes = property(lambda self: 3 * self.trials)  # one a trial, ten more if it is kept

    def __post_init__(self) -> None:
        check_positive(self, "trials")

    def __call__(self, model: Model, x: Tensor, y: Tensor, *, generator: Rng = None) -> Tensor:
        """Attacked inputs, (B, *), detached; x where no ray within ε was found. y: (B,)."""
        del generator  # nothing is drawn
        x, direction = x.detach(), torch.ones_like(x.detach().flatten(1))
        zeros, size = self.threat.norm != "linf", direction.shape[1]
        radius = direction.new_full((len(x),), self.threat.reach(x))

        def points(rows: Tensor, direction: Tensor, radius: Tensor) -> Tensor:
            """(R,), (R, D), (R,) → (R, *), in the box and valid."""
            start = x[rows]
            way = rows_like(radius, start) * self.threat.along(direction.view_as(start))
            return self.threat.valid(self.threat.into_box(start + way), start)

        def is_wrong(*ray: Tensor) -> Tensor:
            """Whether the class is wrong there, (R,)."""
            return outputs_of(model, points(*ray)).argmax(1) != y[ray[0]]

        with eval_mode(model, freeze=True), torch.no_grad():
            everyone = torch.arange(len(x), device=x.device)
            crosses = is_wrong(everyone, direction, radius)  # does the class change along d?
            widths = [-(-size // 2**halvings) for halvings in range((2 * size - 1).bit_length())]
            blocks = cycle((s, s + width) for width in widths for s in range(0, size, width))
            for trial, (start, end) in enumerate(islice(blocks, self.trials)):
                rows = everyone[~(crosses & (radius <= self.threat.epsilon))]
                if len(rows) == 0:
                    break
                flipped = direction[rows]
                flipped[:, start:end] *= 0 if zeros and 2 * trial >= self.trials else -1
                keep = is_wrong(rows, flipped, radius[rows])
                rows, flipped = rows[keep], flipped[keep]
                direction[rows], crosses[rows] = flipped, True
                # Bisect for the smallest radius with a wrong class.
                lower, upper = torch.zeros_like(radius[rows]), radius[rows]
                for _ in range(BISECTIONS if len(rows) else 0):
                    middle = (lower + upper) / 2
                    wrong = is_wrong(rows, flipped, middle)
                    lower = torch.where(wrong, lower, middle)
                    upper = torch.where(wrong, middle, upper)
                radius[rows] = upper
            found = crosses & (radius <= self.threat.epsilon)
            x_adv = self.threat.project(points(everyone, direction, radius), x)
        return torch.where(rows_like(found, x), x_adv, x)


@dataclass(frozen=True, repr=False)
class Transfer:
    """The points that `attack` finds against `surrogate`, tried on the model.

    Where it beats a white-box attack, gradients are masked. Use :class:`TransferPGD`, which
    does not stop where the surrogate errs.
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
    """Attacks, each on the examples that earlier ones did not break. note: shown in the report."""

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
    """The stages of a cascade; another attack is a single stage."""
    return attack.stages if isinstance(attack, Cascade) else (attack,)
