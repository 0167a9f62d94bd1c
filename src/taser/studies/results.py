"""What came of the runs of a table: figures, and a verdict on each example."""

import json
from typing import Any

import torch
from torch import Tensor

from taser.attacks import Threat
from taser.evaluation import Evaluation

from .corrupted import verdicts
from .queue import Queue


def results(queue: Queue) -> list["RunResult"]:
    """Every finished run of a queue, without those of a search."""
    found = [queue.result(name) for name in queue.names()]
    return [RunResult(entry) for entry in found if entry is not None and "closer" in entry]


def unseen(queue: Queue) -> dict[Threat, list["RunResult"]]:
    """The same runs as judged under each threat that training did not know."""
    found: dict[Threat, list[RunResult]] = {}
    for name in queue.names():
        entry = queue.result(name)
        if entry is not None and "judged" in entry:
            trained = queue.result(entry["judged"])
            assert trained is not None  # it was judged
            run = RunResult({**trained, "records": entry["records"]})
            found.setdefault(run.evaluations[0].threat, []).append(run)
    return found


class RunResult:
    """One run's figures and its verdict on each example.

    evaluations: the records, that on the most examples first; the others are on some of these.
    validation: "clean" and "robust" accuracy of the same weights on the validation split.
    closer: accuracy over ε, residuals and an audit, as :mod:`taser.studies.closer` makes them, and
    :mod:`taser.studies.corrupted`.
    """

    def __init__(self, entry: dict[str, Any]) -> None:
        self.method: str = entry["method"]
        self.variant: str = entry["variant"]
        self.seed: int = entry["seed"]
        self.finetuned: bool = entry["finetuned"]
        self.chosen: list[str] = entry["chosen"]
        self.seconds_per_example: float = entry["seconds_per_example"]
        self.validation: dict[str, float] = {name: entry[name] for name in ("clean", "robust")}
        self.closer: dict[str, Any] = entry["closer"]
        self.evaluations = [Evaluation.from_json(json.dumps(each)) for each in entry["records"]]

    @property
    def attacks(self) -> list[str]:
        """Their names."""
        return [name for each in self.evaluations for name in each.attacks]

    def correct(self, measure: str) -> Tensor:
        """(n,) bool: right when clean, under one attack, or in the worst case over all.

        "corrupted" is asked k times of each example: (k, n).
        """
        if measure == "corrupted":
            return verdicts(self.closer["corrupted"])
        first = self.evaluations[0]
        if measure == "clean":
            return first.clean
        if measure == "worst":
            standing = first.standing.clone()
            for fewer in self.evaluations[1:]:
                standing[torch.isin(first.index, fewer.index)] &= fewer.standing
            return standing
        return next(e for e in self.evaluations if measure in e.attacks).attacks[measure].standing

    @property
    def average(self) -> float | None:
        """(AutoAttack + SPSA)/2, the paper's headline, if both were run."""
        if not {"autoattack", "spsa"} <= set(self.attacks):
            return None
        both = [self.correct(name).float().mean() for name in ("autoattack", "spsa")]
        return float(sum(both) / 2)
