"""From runs to the rows of the paper's tables: averaged over seeds, compared example by example."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taser._progress import Progress
from taser.attacks import Threat
from taser.data import Split
from taser.evaluation import Evaluation, evaluate, subset
from taser.evaluation._corruptions import CORRUPTIONS
from taser.evaluation._shift import shift
from taser.evaluation._statistics import (
    Interval,
    accuracy_interval,
    difference_interval,
    retrained_interval,
)

from ._jobs import Queue


def judged(
    model: nn.Module, folder: Path, test: Split, asked: dict[str, Any], progress: Progress | None
) -> list[dict[str, Any]]:
    """One record for all attacks on the same number of examples."""
    sizes = dict.fromkeys(asked["attacks"].values())
    return [
        json.loads(
            evaluate(
                model, test.x, test.y,
                threat=Threat(asked["norm"], asked["epsilon"], *test.box),
                attacks=[name for name, size in asked["attacks"].items() if size == n], n=n,
                out=folder / f"evaluation-{n}", progress=progress,
            ).to_json()
        )
        for n in sorted(sizes, reverse=True)
    ]  # fmt: skip


def corruption_accuracy(
    model: nn.Module, test: Split, n: int, progress: Progress | None = None
) -> dict[str, Any] | None:
    """Right answers to n test pictures under every corruption and severity; as JSON.

    of: how many times each was asked; right: how often rightly, (n,); kinds: the share of right
    answers to each kind of corruption. None for what is no picture.
    """
    if not test.is_images:
        return None
    rows = subset(len(test), n)
    found = shift(model, test.rows(rows), test.y[rows], progress=progress)
    kinds: dict[str, list[Tensor]] = {}
    for corruption in CORRUPTIONS:
        if corruption.name in found.correct:
            kinds.setdefault(corruption.kind, []).append(found.correct[corruption.name])
    every = torch.cat(list(found.correct.values()))  # (corruptions · severities, n)
    return {
        "of": len(every), "right": every.sum(0).tolist(),
        "kinds": {kind: float(torch.cat(own).float().mean()) for kind, own in kinds.items()},
    }  # fmt: skip


def verdicts(found: dict[str, Any]) -> Tensor:
    """(k, n) bool with as many right answers an example as :func:`corruption_accuracy` counts."""
    return torch.arange(found["of"])[:, None] < torch.tensor(found["right"])


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
    closer: accuracy over ε, residuals and an audit, see :mod:`taser.compare._diagnostics`.
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
            standing = first.robust.clone()
            for fewer in self.evaluations[1:]:
                standing[torch.isin(first.index, fewer.index)] &= fewer.robust
            return standing
        return next(e for e in self.evaluations if measure in e.attacks).attacks[measure].correct

    @property
    def average(self) -> float | None:
        """(AutoAttack + SPSA)/2, the paper's headline, if both were run."""
        if not {"autoattack", "spsa"} <= set(self.attacks):
            return None
        both = [self.correct(name).float().mean() for name in ("autoattack", "spsa")]
        return float(sum(both) / 2)


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
