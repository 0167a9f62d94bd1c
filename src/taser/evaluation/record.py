"""What an evaluation found, example by example."""

import json
from dataclasses import asdict, dataclass
from typing import Self

import torch
from torch import Tensor

from taser.attacks import Threat

from .findings import Finding
from .provenance import Provenance
from .verdicts import Verdicts

FORMAT = 1


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """A model judged on n examples.

    index: (n,), their rows in the data given; y: (n,) labels; clean: (n,) bool, right without an
    attack; attacks: the verdicts of each, in the order they were run; attacked: (n, *), the input
    that broke each example first, x itself where none did. It is not part of the JSON.
    """

    threat: Threat
    index: Tensor
    y: Tensor
    clean: Tensor
    attacks: dict[str, Verdicts]
    findings: tuple[Finding, ...]
    provenance: Provenance
    attacked: Tensor | None = None

    def __repr__(self) -> str:
        attacks = ", ".join(f"{name} {100 * v.accuracy:.1f} %" for name, v in self.attacks.items())
        return (
            f"Evaluation({self.threat}, n={self.n}: clean {100 * self.clean_accuracy:.1f} %, "
            f"{attacks}, worst case {100 * self.robust_accuracy:.1f} %; "
            f"{len(self.findings)} findings)"
        )

    @property
    def n(self) -> int:
        """The number of examples."""
        return len(self.index)

    @property
    def clean_accuracy(self) -> float:
        """The share that is right without an attack."""
        return int(self.clean.sum()) / self.n

    def accuracy(self, attack: str) -> float:
        """The share that is right under one attack."""
        return self.attacks[attack].accuracy

    @property
    def standing(self) -> Tensor:
        """(n,) bool: right on the clean input and under every attack, the worst case."""
        return torch.stack([self.clean, *(v.standing for v in self.attacks.values())]).all(0)

    @property
    def robust_accuracy(self) -> float:
        """The per-example worst case over all attacks: the figure to quote."""
        return int(self.standing.sum()) / len(self.standing)

    @property
    def paper_average(self) -> float | None:
        """(AutoAttack + SPSA)/2, as the paper's tables have it; None unless both were run."""
        if not {"autoattack", "spsa"} <= self.attacks.keys():
            return None
        return (self.accuracy("autoattack") + self.accuracy("spsa")) / 2

    def to_json(self) -> str:
        """The whole record."""
        return json.dumps(
            {
                "format": FORMAT,
                "n": self.n,
                "clean_accuracy": self.clean_accuracy,
                "robust_accuracy": self.robust_accuracy,
                "paper_average": self.paper_average,
                "threat": asdict(self.threat),
                "findings": [asdict(finding) for finding in self.findings],
                "provenance": asdict(self.provenance),
                "attacks": {name: v.numbers() for name, v in self.attacks.items()},
                "index": self.index.tolist(),
                "y": self.y.tolist(),
                "clean": self.clean.int().tolist(),
            },
            indent=1,
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of :meth:`to_json`."""
        numbers = json.loads(text)
        if numbers.get("format") != FORMAT:
            raise ValueError(f"not a record of an evaluation, of format {FORMAT}")
        return cls(
            threat=Threat(**numbers["threat"]),
            index=torch.tensor(numbers["index"]),
            y=torch.tensor(numbers["y"]),
            clean=torch.tensor(numbers["clean"]).bool(),
            attacks={name: Verdicts.of(v) for name, v in numbers["attacks"].items()},
            findings=tuple(Finding(**finding) for finding in numbers["findings"]),
            provenance=Provenance(**numbers["provenance"]),
        )
