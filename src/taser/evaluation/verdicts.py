"""One attack's result on every example."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Verdicts:
    """One attack's result on each example.

    standing: (n,) bool, right on the clean input and under this attack; distance: (n,), how far the
    input that broke it lies from x, zero where nothing did; stage: (n,) which stage of a cascade
    broke it, −1 where none did; stages: their names; seconds: spent on it.
    """

    standing: Tensor
    distance: Tensor
    stage: Tensor
    stages: tuple[str, ...]
    seconds: float = 0.0

    def __repr__(self) -> str:
        right = f"{int(self.standing.sum())} of {len(self.standing)} stand"
        return f"Verdicts({right}; stages {', '.join(self.stages)}; {self.seconds:.1f} s)"

    @property
    def accuracy(self) -> float:
        """The share of examples that stand."""
        return int(self.standing.sum()) / len(self.standing)

    def after(self, clean: Tensor) -> dict[str, float]:
        """Robust accuracy after each stage in turn. clean: (n,) bool."""
        return {
            name: int((clean & ~((self.stage >= 0) & (self.stage <= i))).sum()) / len(clean)
            for i, name in enumerate(self.stages)
        }

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "accuracy": self.accuracy,
            "stages": list(self.stages),
            "seconds": round(self.seconds, 3),
            "standing": self.standing.int().tolist(),
            "distance": [round(value, 7) for value in self.distance.tolist()],
            "stage": self.stage.tolist(),
        }

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`numbers`."""
        return cls(
            torch.tensor(numbers["standing"]).bool(), torch.tensor(numbers["distance"]),
            torch.tensor(numbers["stage"]), tuple(numbers["stages"]), numbers["seconds"],
        )  # fmt: skip
