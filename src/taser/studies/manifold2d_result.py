"""What the manifold study found, and the rules by which its methods are compared."""

import math
from dataclasses import asdict, dataclass, field
from itertools import product
from statistics import fmean
from typing import Any, get_args

from .manifold2d_config import Config
from .matched import Matched, Part, at_level, common_levels, strongest
from .penalised import PENALTIES
from .portrait import Portrait, Scene
from .sensitivity import Sensitivity

METHODS = tuple(PENALTIES)
PLAIN = "plain"
PARTS: tuple[Part, ...] = get_args(Part)
ON_CURVE = "taser, on the curve"
"""The control: the residual taken at the curve point nearest to each example, without noise."""


@dataclass(frozen=True)
class Run:
    """One training: its penalty ("plain" for none), strength, λ, seed, and what was measured."""

    method: str
    strength: float
    weight: float
    seed: int
    measured: Sensitivity


@dataclass(frozen=True)
class Result:
    """All runs, and a portrait of each method at its `shown` strength, of the first seed.

    ceiling: the share of held-out points further than ε, along the curve, from another class: what
    boundaries square to the curve would score against perturbations in any direction.
    """

    config: Config
    ceiling: float
    runs: tuple[Run, ...]
    scene: Scene = field(compare=False)
    portraits: dict[str, Portrait] = field(compare=False, default_factory=dict)

    def over_seeds(self, method: str, strength: float) -> list[Sensitivity]:
        """What was measured for a method and strength, one entry a seed."""
        where = (method, strength)
        return [run.measured for run in self.runs if (run.method, run.strength) == where]

    def path(self, method: str, seed: int) -> list[Sensitivity]:
        """What was measured for a method and seed, over growing strength."""
        return [run.measured for run in self.runs if (run.method, run.seed) == (method, seed)]

    def accuracy(self, method: str, strength: float) -> float:
        """Clean accuracy, the mean over seeds."""
        return fmean(m.accuracy for m in self.over_seeds(method, strength))

    def affordable(self, method: str) -> float:
        """The greatest strength that keeps the clean accuracy of plain training, less `allowance`.

        If every strength costs more than that, the weakest.
        """
        strengths = self.config.strengths
        floor = self.accuracy(PLAIN, 0.0) - self.config.allowance
        return strengths[strongest([self.accuracy(method, s) for s in strengths], floor)]

    def shown(self, method: str) -> float:
        """The strength whose tangential sensitivity is nearest to the middle one of `levels`.

        So the pictures differ in what is across the curve; `affordable` if there is no level.
        """
        levels = self.levels("tangent")
        if method == PLAIN:
            return 0.0
        if not levels:
            return self.affordable(method)

        def distance(strength: float) -> float:
            measured = self.over_seeds(method, strength)
            return abs(math.log(fmean(m.tangent for m in measured) / levels[len(levels) // 2]))

        return min(self.config.strengths, key=distance)

    def control(self) -> tuple[float, list[Sensitivity]]:
        """The strength of the control on the curve, and what was measured, one entry a seed."""
        (strength,) = {run.strength for run in self.runs if run.method == ON_CURVE}
        return strength, self.over_seeds(ON_CURVE, strength)

    def levels(self, part: Part, other: str = "isotropic") -> list[float]:
        """Levels of a sensitivity that TASER and another method pass with every seed, or none."""
        both = product(("taser", other), self.config.seeds)
        return common_levels([self.path(method, seed) for method, seed in both], part)

    def matched(self, method: str, part: Part, level: float) -> list[Matched]:
        """A method at one of the `levels`, one entry a seed."""
        return [at_level(self.path(method, seed), part, level) for seed in self.config.seeds]

    def numbers(self) -> dict[str, Any]:
        """Everything but the pictures, for JSON."""
        return {
            "config": asdict(self.config),
            "ceiling": self.ceiling,
            "affordable": {method: self.affordable(method) for method in METHODS},
            "shown": {method: self.shown(method) for method in METHODS},
            "matched": {part: self._matched(part) for part in PARTS},
            "runs": [
                {**asdict(run), "measured": {**asdict(run.measured), "ratio": run.measured.ratio}}
                for run in self.runs
            ],
        }

    def _matched(self, part: Part) -> list[dict[str, Any]]:
        return [
            {m: [asdict(p) for p in self.matched(m, part, level)] for m in ("isotropic", "taser")}
            for level in self.levels(part)
        ]
