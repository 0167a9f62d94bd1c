"""Compare models on the same examples: paired intervals and tests."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from ._record import Evaluation
from ._statistics import LEVEL, Interval, accuracy_interval, difference_interval, mcnemar


@dataclass(frozen=True)
class Cell:
    """One model's accuracy in one column; best: significantly above every other model."""

    accuracy: Interval
    best: bool


@dataclass(frozen=True)
class Comparison:
    """A table of models: rows[model][column]; n examples, the same for all."""

    rows: dict[str, dict[str, Cell]]
    n: int

    @property
    def columns(self) -> list[str]:
        """The headings: clean, each attack, the worst case."""
        return list(next(iter(self.rows.values())))


@dataclass(frozen=True)
class Difference:
    """How much better one model is than another: paired bootstrap and McNemar's exact test."""

    interval: Interval
    p_value: float


def compare(evaluations: Mapping[str, Evaluation]) -> Comparison:
    """Clean accuracy, each attack that all have in common, and the worst case.

    The worst case is comparable only over the same attacks, so it is taken over those in common. A
    cell is best if the paired 95 % interval of its difference from every other model is positive;
    with m models the level is 1 − 0.05/(m − 1), so that the whole claim holds with 95 %.
    """
    shared = _shared_attacks(evaluations)
    columns = {name: _columns(evaluation, shared) for name, evaluation in evaluations.items()}
    rows: dict[str, dict[str, Cell]] = {name: {} for name in evaluations}
    for name, own in columns.items():
        for column, correct in own.items():
            rivals = [columns[rival][column] for rival in columns if rival != name]
            rows[name][column] = Cell(accuracy_interval(correct), _is_best(correct, rivals))
    return Comparison(rows, next(iter(evaluations.values())).n)


def differences(evaluations: Mapping[str, Evaluation]) -> dict[tuple[str, str], Difference]:
    """For each pair of models, first minus second: the worst case over the shared attacks."""
    shared = _shared_attacks(evaluations)
    robust = {name: _robust(evaluation, shared) for name, evaluation in evaluations.items()}
    return {
        (first, second): difference(robust[first], robust[second])
        for first, second in combinations(evaluations, 2)
    }


def difference(first: Tensor, second: Tensor) -> Difference:
    """Of two models' verdicts on the same examples, (n,) bool each: first minus second."""
    return Difference(difference_interval(first, second), mcnemar(first, second))


def _shared_attacks(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """The attacks that all were tried with, in the same settings, on the same examples."""
    if not evaluations:
        raise ValueError("there is nothing to compare")
    first, *others = evaluations.values()
    for name, other in zip(list(evaluations)[1:], others, strict=True):
        same_data = other.provenance.data == first.provenance.data
        if not same_data or other.threat != first.threat:
            what = "on other examples" if not same_data else "within another threat"
            raise ValueError(f"{name} was evaluated {what}: they cannot be compared")
    settings = [evaluation.provenance.attacks for evaluation in evaluations.values()]
    shared = [
        name
        for name in first.attacks
        if all(name in other.attacks for other in others)
        and all(attacks.get(name) == settings[0].get(name) for attacks in settings)
    ]
    if not shared:
        tried = "; ".join(f"{name}: {', '.join(e.attacks)}" for name, e in evaluations.items())
        raise ValueError(
            f"they have no attack with the same settings in common ({tried}): robustness cannot be "
            "compared"
        )
    return shared


def _robust(evaluation: Evaluation, attacks: list[str]) -> Tensor:
    """Right when clean and under all of these attacks, (n,)."""
    return torch.stack([evaluation.clean, *(evaluation.attacks[a].correct for a in attacks)]).all(0)


def _columns(evaluation: Evaluation, attacks: list[str]) -> dict[str, Tensor]:
    """Verdicts by column, (n,) each."""
    columns = {"clean": evaluation.clean}
    columns |= {name: evaluation.attacks[name].correct for name in attacks}
    if len(attacks) > 1:
        columns["worst case"] = _robust(evaluation, attacks)
    return columns


def _is_best(own: Tensor, rivals: list[Tensor]) -> bool:
    if not rivals:
        return False
    level = 1 - (1 - LEVEL) / len(rivals)
    return all(difference_interval(own, rival, level=level).low > 0 for rival in rivals)
