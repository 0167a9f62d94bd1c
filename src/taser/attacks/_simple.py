"""Random noise, attacks made on another model, and attacks one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from taser.stein._model_state import eval_mode

from ._attack import Attack, Model, Threat, WorstPoints, check_positive, short_repr


@dataclass(frozen=True)
class RandomNoise:
    """The worst of `samples` random points, which any stronger attack should find as well."""

    threat: Threat = field(default_factory=Threat)
    samples: int = 100
    name: str = "noise"

    def __post_init__(self) -> None:
        check_positive(self, "samples")

    passes = property(lambda self: self.samples)

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Attacked inputs, (B, *), detached. y: (B,)."""
        with eval_mode(model, freeze=True), torch.no_grad():
            worst = WorstPoints(model, x, y)
            for _ in range(self.samples):
                rows = worst.unbroken
                if len(rows) == 0:
                    break
                moved = self.threat.random(x[rows], generator)
                worst.update(rows, moved, model(moved.clone()))  # which may work in place
        return worst.x


@dataclass(frozen=True, repr=False)
class Transfer:
    """The points that `attack` finds against `surrogate`, tried on the model.

    It never runs the model: where it beats a white-box attack, gradients are masked. The attack
    should not stop where the surrogate errs: :class:`LastingPGD` goes on.
    """

    attack: Attack
    surrogate: Model
    name: str = "transfer"

    __repr__ = short_repr

    @property
    def threat(self) -> Threat:
        """The ball of the attack inside."""
        return self.attack.threat

    passes = property(lambda self: getattr(self.attack, "passes", 1))

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Attacked inputs, (B, *), detached. y: (B,)."""
        del model  # the surrogate is attacked instead
        return self.attack(self.surrogate, x, y, generator=generator)


@dataclass(frozen=True)
class Cascade:
    """Attacks one after the other, each on the examples that the earlier ones did not break.

    note: what a reader of its results should know.
    """

    name: str
    stages: Sequence[Attack]
    note: str = ""

    def __post_init__(self) -> None:
        if len({stage.threat for stage in self.stages}) != 1:
            raise ValueError("a cascade needs stages, all with one threat")

    @property
    def threat(self) -> Threat:
        """The ball that all stages share."""
        return self.stages[0].threat

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Attacked inputs, (B, *), detached. y: (B,)."""
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
