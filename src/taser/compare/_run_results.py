"""Results of a comparison: every run, and rows that average seeds and pair examples."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taser._files import write_atomically
from taser.attacks import Threat
from taser.evaluation import (
    Evaluation,
    Interval,
    accuracy_interval,
    difference_interval,
    retrained_interval,
)

from ._comparison_config import run_title
from ._comparison_records import FILE, Record, read_evaluation, read_records, records_file


class RunResult:
    """One run's figures and its verdict on each example.

    evaluations: sorted, the most examples first; the others use a subset of these. diagnostics:
    the "curve" over ε and an "audit", if one was made; older records have more.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        result = record["result"]
        self.method: str = result["method"]
        self.variant: str = result["variant"]
        self.seed: int = result["seed"]
        self.finetuned: bool = result["finetuned"]
        self.chosen: list[str] = result["chosen"]
        self.seconds_per_example: float = result["seconds_per_example"]
        self.diagnostics: dict[str, Any] = record["diagnostics"]
        self.evaluations: list[Evaluation] = list(map(read_evaluation, record["evaluations"]))

        self.threat: Threat = self.evaluations[0].threat

    @property
    def attacks(self) -> list[str]:
        """The names of the attacks."""
        return [name for each in self.evaluations for name in each.attacks]

    def correct(self, measure: str) -> Tensor:
        """(n,) bool: correct on clean inputs, under one attack, or under all ("worst")."""
        first = self.evaluations[0]
        if measure == "clean":
            return first.clean
        if measure == "worst":
            correct = first.robust.clone()
            for fewer in self.evaluations[1:]:
                correct[torch.isin(first.index, fewer.index)] &= fewer.robust
            return correct
        return next(e for e in self.evaluations if measure in e.attacks).attacks[measure].correct


@dataclass(frozen=True)
class Row:
    """One method with one variant, against a baseline, by default the variant "off".

    accuracy: {measure: share with a 95 % interval}, for "clean", each attack and "worst"; gain: the
    paired difference to the baseline, with an interval over examples (None for the baseline);
    gain_range: the gains of the lowest and the highest seed; gain_retrained: the gain with an
    interval over examples and trainings (None for one seed); milliseconds: training time per
    example; overhead: that time / the baseline's; n: {measure: number of examples}, the same for
    every seed; chosen: overrides that the search chose.
    """

    method: str
    variant: str
    finetuned: bool
    accuracy: dict[str, Interval]
    gain: dict[str, Interval] | None
    gain_range: dict[str, tuple[float, float]] | None
    gain_retrained: dict[str, Interval] | None
    milliseconds: float
    overhead: float | None
    seeds: int
    n: dict[str, int]
    chosen: tuple[str, ...]

    @property
    def headline(self) -> str:
        """The measure that decides the verdict."""
        return headline(list(self.accuracy))

    @property
    def verdict(self) -> str:
        """Whether the gain in the headline measure is significant; "" for the baseline."""
        return "" if self.gain is None else verdict(self.gain[self.headline])


def verdict(gain: Interval) -> str:
    """A paired 95 % interval in words."""
    if gain.excludes_zero():
        return "significant gain" if gain.low > 0 else "significant loss"
    return "no significant difference"


def headline(measures: Sequence[str]) -> str:
    """The measure that decides the verdict: AutoAttack, or else the last."""
    return "autoattack" if "autoattack" in measures else measures[-1]


@dataclass(frozen=True)
class Results:
    """The results of a comparison so far.

    records: all runs, search runs and unfinished runs included, as in results/README.md; runs: the
    finished runs of the table.
    """

    folder: Path
    records: list[Record]
    runs: list[RunResult]
    _rows: dict[str, list[Row]] = field(default_factory=dict, init=False, repr=False)

    @property
    def measures(self) -> list[str]:
        """ "clean", the attacks, and "worst" if there are several attacks."""
        attacks = self.runs[0].attacks
        return ["clean", *attacks, *(["worst"] if len(attacks) > 1 else [])]

    @property
    def missing(self) -> dict[str, str]:
        """{name: error or "not finished"} for each run without a result."""
        return {record["run"]: record.get("error", "not finished")
                for record in self.records if "result" not in record}  # fmt: skip

    @property
    def completeness(self) -> str:
        """How many runs are finished and which are missing, in a sentence."""
        done, total = len(self.records) - len(self.missing), len(self.records)
        if not self.missing:
            return f"All {total} runs are finished."
        titles = {record["run"]: run_title(record["job"]) for record in self.records}
        named = [f"{titles[name]}: {why}" for name, why in list(self.missing.items())[:3]]
        more = f"; and {len(self.missing) - 3} more" * (len(self.missing) > 3)
        return f"Incomplete: {done} of {total} runs are finished. Missing: {'; '.join(named)}{more}"

    def rows(self, *, baseline: str = "off") -> list[Row]:
        """A row for each method and variant; gains are over the variant `baseline`."""
        if baseline not in self._rows:
            self._rows[baseline] = rows(self.runs, self.measures, baseline=baseline)
        return self._rows[baseline]

    def figures(self) -> str:
        """The rows as JSON."""
        return json.dumps({"rows": [asdict(row) for row in self.rows()]}, indent=1) + "\n"


def read_results(folder: Path | str) -> Results:
    """The finished runs of a comparison, from its folder or from a folder of records."""
    records, runs = read_records(Path(folder)), []
    for record in records:
        if "result" in record and "candidate" not in record["job"]:
            try:
                runs.append(RunResult(record))
            except (KeyError, TypeError, AttributeError) as error:
                where = f"the result of {record['run']} in {folder} is damaged"
                raise ValueError(f"{where}, or another version's: {error!r}") from None
    results = Results(Path(folder), records, runs)
    if not runs:
        raise ValueError(f"no run in {folder} is finished yet. {results.completeness}")
    return results


def write_records(folder: Path | str, out: Path | str) -> int:
    """Keep a comparison without its weights: table.md, figures.json and records.jsonl.xz in `out`.

    table.md is copied from `folder`. Returns the number of finished runs.
    """
    results, table = read_results(folder), Path(folder) / "table.md"
    if not table.is_file():
        raise ValueError(f"there is no table.md in {folder}: `taser compare {folder} --report`")
    out = Path(out)
    write_atomically(out / FILE, records_file(results.records))
    write_atomically(out / "figures.json", results.figures())
    write_atomically(out / "table.md", table.read_bytes())
    return sum("result" in record for record in results.records)


def rows(runs: Sequence[RunResult], measures: Sequence[str], *, baseline: str = "off") -> list[Row]:
    """A row for each method and variant; gains are over `baseline`.

    Methods keep the order of `runs`; in each, "off" comes first, then "taser".
    """
    methods = list(dict.fromkeys((run.finetuned, run.method) for run in runs))
    groups: dict[tuple[bool, str, str], list[RunResult]] = {}
    for run in sorted(runs, key=lambda r: (r.variant != "off", r.variant != "taser")):
        groups.setdefault((run.finetuned, run.method, run.variant), []).append(run)
    found = []
    for finetuned, method, variant in sorted(groups, key=lambda key: methods.index(key[:2])):
        group = groups[finetuned, method, variant]
        off = {run.seed: run for run in groups.get((finetuned, method, baseline), [])}
        ours = [run for run in group if run.seed in off and variant != baseline]
        found.append(_row(group, ours, [off[run.seed] for run in ours], measures))
    return found


def _row(
    group: list[RunResult], ours: list[RunResult], theirs: list[RunResult], measures: Sequence[str]
) -> Row:
    """A row of all seeds in `group`; `ours` and `theirs` are its pairs with the baseline."""

    def correct(runs: list[RunResult], measure: str) -> Tensor:
        return torch.stack([run.correct(measure) for run in runs])  # (seeds, n)

    def milliseconds(runs: list[RunResult]) -> float:
        return 1000 * sum(run.seconds_per_example for run in runs) / len(runs)

    gain, gain_range, gain_retrained = {}, {}, {}
    for m in measures if ours else ():
        one, other = correct(ours, m), correct(theirs, m)
        by_seed = (one.double().mean(1) - other.double().mean(1)).tolist()
        gain[m], gain_range[m] = difference_interval(one, other), (min(by_seed), max(by_seed))
        if len(ours) > 1:
            gain_retrained[m] = retrained_interval(list(one), list(other))
    return Row(
        group[0].method, group[0].variant, group[0].finetuned,
        accuracy={m: accuracy_interval(correct(group, m)) for m in measures},
        gain=gain or None, gain_range=gain_range or None, gain_retrained=gain_retrained or None,
        milliseconds=milliseconds(group),
        overhead=milliseconds(ours) / milliseconds(theirs) if ours else None,
        seeds=len(group), n={m: len(group[0].correct(m)) for m in measures},
        chosen=tuple(group[0].chosen),
    )  # fmt: skip
