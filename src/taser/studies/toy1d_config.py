"""What the toy regression depends on."""

import math
from dataclasses import dataclass
from typing import Literal

from taser.stein._checks import check_choice
from taser.stein._layer_checks import Backend

Method = Literal["none", "l2", "taser"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """One setting for every row; the network without a regulariser is always trained too.

    weights: the λ of both penalties; hidden: units in each tanh layer; batch: fresh draws of
    N(0, 1) in each of `steps` steps of Adam, whose rate falls from `learning_rate` to 0 along a
    cosine; backend: of the Stein residual; half_widths: w of the wide grids [−w, w]; test_points:
    fresh draws for the error in distribution. `workers` processes share the fits and change no
    number; more than one need a main module that can be imported.
    """

    weights: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    hidden: tuple[int, ...] = (64, 64)
    batch: int = 128
    steps: int = 2000
    learning_rate: float = 1e-2
    backend: Backend = "difference"
    half_widths: tuple[float, ...] = (4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0)
    test_points: int = 20_000
    workers: int = 2

    def __post_init__(self) -> None:
        for name in ("weights", "hidden", "half_widths"):
            _check_distinct(name, getattr(self, name), repeats=name == "hidden")
            if not all(0 < value < math.inf for value in getattr(self, name)):
                raise ValueError(f"{name} should be positive; got {getattr(self, name)}")
        _check_distinct("seeds", self.seeds)
        for name in ("batch", "steps", "test_points", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} should be at least 1; got {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate should be positive; got {self.learning_rate}")
        check_choice("backend", self.backend, ("difference", "reverse", "exact"))

    @classmethod
    def quick(cls) -> "Config":
        """Seconds instead of a minute: to try the command line and the page, not to quote."""
        return cls(weights=(1e-2, 1e-1), seeds=(0, 1), hidden=(32,), batch=64, steps=150, workers=1)

    @property
    def rows(self) -> list[tuple[Method, float]]:
        """Every regulariser with each of its weights."""
        methods: tuple[Method, Method] = ("l2", "taser")
        return [("none", 0.0), *((method, w) for method in methods for w in self.weights)]


def _check_distinct(name: str, values: tuple, repeats: bool = False) -> None:
    if not values or (len(set(values)) < len(values) and not repeats):
        raise ValueError(f"{name} should hold at least one value and none twice; got {values}")
