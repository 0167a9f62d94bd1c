"""From runs to the rows of the paper's tables: averaged over seeds, compared example by example."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taser.evaluation.statistics import (
    Interval,
    accuracy_interval,
    difference_interval,
    retrained_interval,
)

from .results import RunResult


@dataclass(frozen=True)
class Row:
    """One method with one variant, against the baseline, by default the method alone.

    accuracy: by measure ("clean", "corrupted", each attack, "worst"), shares with 95 % intervals;
    gain: the paired difference to the baseline, None for itself, with its interval over examples;
    gain_range: that of the lowest and the highest seed; gain_retrained: with its interval over
    examples and trainings, None for one seed; average: (AutoAttack + SPSA)/2 if both were run;
    milliseconds: of training for each example; overhead: over the baseline; n: by measure,
    examples, which every seed answers; chosen: what the search took.
    """

    method: str
    variant: str
    finetuned: bool
    accuracy: dict[str, Interval]
    gain: dict[str, Interval] | None
    gain_range: dict[str, tuple[float, float]] | None
    gain_retrained: dict[str, Interval] | None
    average: float | None
    milliseconds: float
    overhead: float | None
    seeds: int
    n: dict[str, int]
    chosen: tuple[str, ...]

    @property
    def headline(self) -> str:
        """The measure that counts."""
        return headline(list(self.accuracy))

    def supported(self, measure: str) -> bool:
        """Whether the gain's interval lies above zero."""
        return self.gain is not None and self.gain[measure].low > 0

    def lasting(self, measure: str) -> bool:
        """Whether it is, and by the scatter of several trainings, too."""
        retrained = self.gain_retrained
        return self.supported(measure) and retrained is not None and retrained[measure].low > 0


def headline(measures: Sequence[str]) -> str:
    """The measure that counts: AutoAttack, or the last there is."""
    return "autoattack" if "autoattack" in measures else measures[-1]


def rows(runs: Sequence[RunResult], measures: Sequence[str], *, baseline: str = "off") -> list[Row]:
    """A row for each method and variant, :func:`in_order`; gains are over `baseline`."""
    groups: dict[tuple[bool, str, str], list[RunResult]] = {}
    for run in in_order(runs):
        groups.setdefault((run.finetuned, run.method, run.variant), []).append(run)
    found = []
    for (finetuned, method, variant), group in groups.items():
        off = groups.get((finetuned, method, baseline), [])
        paired = _paired(group, off) if variant != baseline else ([], [])
        found.append(_row(method, variant, finetuned, group, paired, measures))
    return found


def in_order(runs: Sequence[RunResult]) -> list[RunResult]:
    """Methods as they come, of each "off" first, then "taser"; a queue goes by names."""
    methods = list(dict.fromkeys((run.finetuned, run.method) for run in runs))

    def place(run: RunResult) -> tuple[int, bool, bool]:
        method = methods.index((run.finetuned, run.method))
        return method, run.variant != "off", run.variant != "taser"

    return sorted(runs, key=place)


def _paired(
    group: list[RunResult], off: list[RunResult]
) -> tuple[list[RunResult], list[RunResult]]:
    """The runs of both that share a seed, in the same order."""
    seeds = {run.seed: run for run in off}
    both = [(run, seeds[run.seed]) for run in group if run.seed in seeds]
    return [run for run, _ in both], [run for _, run in both]


def _row(
    method: str,
    variant: str,
    finetuned: bool,
    group: list[RunResult],
    paired: tuple[list[RunResult], list[RunResult]],
    measures: Sequence[str],
) -> Row:
    ours, theirs = paired
    averages = [run.average for run in group]
    known = [average for average in averages if average is not None]
    return Row(
        method, variant, finetuned,
        {m: accuracy_interval(_verdicts(group, m)) for m in measures},
        {m: difference_interval(_verdicts(ours, m), _verdicts(theirs, m)) for m in measures}
        if ours else None,
        {m: _range(ours, theirs, m) for m in measures} if ours else None,
        {m: retrained_interval(_answers(ours, m), _answers(theirs, m)) for m in measures}
        if len(ours) > 1 else None,
        sum(known) / len(known) if known else None,
        _milliseconds(group), _milliseconds(ours) / _milliseconds(theirs) if ours else None,
        len(group), {m: group[0].correct(m).shape[-1] for m in measures}, tuple(group[0].chosen),
    )  # fmt: skip


def _verdicts(runs: list[RunResult], measure: str) -> Tensor:
    """(k, n): right or wrong by every seed, as often as it was asked, on every example."""
    return torch.cat([torch.atleast_2d(answers) for answers in _answers(runs, measure)])


def _answers(runs: list[RunResult], measure: str) -> list[Tensor]:
    """Right or wrong by each seed: (n,), or (c, n) where an example is asked several times."""
    return [run.correct(measure) for run in runs]


def _range(ours: list[RunResult], theirs: list[RunResult], measure: str) -> tuple[float, float]:
    """The lowest and the highest gain of a seed."""
    gains = [
        float(one.correct(measure).double().mean() - other.correct(measure).double().mean())
        for one, other in zip(ours, theirs, strict=True)
    ]
    return min(gains), max(gains)


def _milliseconds(runs: list[RunResult]) -> float:
    """Of training, for each example."""
    return 1000 * sum(run.seconds_per_example for run in runs) / len(runs)
