"""Attacks one after the other, each on what the earlier ones left standing."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .protocol import Attack, Model
from .quiet import quiet
from .threat import Threat


@dataclass(frozen=True)
class Cascade:
    """The union of what its stages break, at the price of attacking each example until it breaks.

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
        with quiet(model), torch.no_grad():
            for stage in self.stages:
                rows = (model(found.clone()).argmax(1) == y).nonzero()[:, 0]
                if len(rows):
                    found[rows] = stage(model, x[rows], y[rows], generator=generator)
        return found


def stages_of(attack: Attack) -> Sequence[Attack]:
    """The stages of a cascade; any other attack is its own only stage."""
    return attack.stages if isinstance(attack, Cascade) else (attack,)
