"""From runs to the rows of the paper's tables: pooled over seeds, compared example by example."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taser.evaluation.statistics import Interval, accuracy_interval, difference_interval

from .table import RunResult


@dataclass(frozen=True)
class Row:
    """One method with one variant, against the baseline, by default the method alone.

    accuracy: by measure ("clean", each attack, "worst"), shares with 95 % intervals; gain: the
    paired difference to the baseline, None for itself; average: (AutoAttack + SPSA)/2 if both were
    run; milliseconds: of training for each example; overhead: over it; n: by measure, verdicts
    over all seeds; chosen: what the search took.
    """

    method: str
    variant: str
    finetuned: bool
    accuracy: dict[str, Interval]
    gain: dict[str, Interval] | None
    average: float | None
    milliseconds: float
    overhead: float | None
    seeds: int
    n: dict[str, int]
    chosen: tuple[str, ...]

    def supported(self, measure: str) -> bool:
        """Whether the gain's interval lies above zero."""
        return self.gain is not None and self.gain[measure].low > 0


def rows(runs: Sequence[RunResult], measures: Sequence[str], *, baseline: str = "off") -> list[Row]:
    """A row for each method and variant, in the order they come; gains are over `baseline`."""
    groups: dict[tuple[bool, str, str], list[RunResult]] = {}
    for run in runs:
        groups.setdefault((run.finetuned, run.method, run.variant), []).append(run)
    found = []
    for (finetuned, method, variant), group in groups.items():
        off = groups.get((finetuned, method, baseline), [])
        paired = _paired(group, off) if variant != baseline else ([], [])
        found.append(_row(method, variant, finetuned, group, paired, measures))
    return found


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
    milliseconds = 1000 * sum(run.seconds_per_example for run in group) / len(group)
    before = 1000 * sum(run.seconds_per_example for run in theirs) / max(1, len(theirs))
    averages = [run.average for run in group]
    known = [average for average in averages if average is not None]
    return Row(
        method, variant, finetuned,
        {m: accuracy_interval(_verdicts(group, m)) for m in measures},
        {m: difference_interval(_verdicts(ours, m), _verdicts(theirs, m)) for m in measures}
        if ours else None,
        sum(known) / len(known) if known else None,
        milliseconds, milliseconds / before if ours else None,
        len(group), {m: len(_verdicts(group, m)) for m in measures}, tuple(group[0].chosen),
    )  # fmt: skip


def _verdicts(runs: list[RunResult], measure: str) -> Tensor:
    """Right or wrong on every example of every seed, one after another."""
    return torch.cat([run.correct(measure) for run in runs])
