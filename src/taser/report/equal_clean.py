"""TASER against the isotropic penalty over λ, each chosen for the same loss of clean accuracy."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from taser.studies.results import RunResult
from taser.studies.search import best
from taser.studies.table_rows import Row

from .finished import Finished
from .frontier import MARK, judged, under
from .method_table import MEASURES, emphasised, percent, title_of
from .seed_table import OTHER_SEEDS, retrained
from .table import Table

CAPTION = (
    "Over all λ that were tried, equally many for both: of each penalty the λ that the validation "
    "split takes, by the highest robust accuracy there among those that lose at most so many "
    "points of clean accuracy against the method alone, judged on the test examples. Δ: TASER "
    "minus the isotropic penalty in points with paired 95 % intervals over the examples, in bold "
    "where they exclude zero; equal clean accuracy is where Δ clean is small."
)
ALLOWED = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)  # of clean accuracy


def equal_clean_table(study: Finished) -> Table | None:
    """A line for each pair of λ that some allowances take; None without curves of both."""
    found = list(_pairs(study))
    if not found:
        return None
    shown = ["clean", *judged(study.measures)]
    attack = MEASURES.get(shown[1], shown[1])
    seeds = any(ours.gain_retrained for _, ours, _ in found)
    headings = ["method", "clean loss allowed", "TASER: λ", "clean", attack, "isotropic: λ",
                "clean", attack, *(f"Δ {MEASURES.get(m, m)}" for m in shown),
                *([f"{attack}, other seeds"] * seeds)]  # fmt: skip
    cells = [
        [title_of(ours.method), levels,
         *(cell for row in (ours, theirs)
           for cell in (_lambda(row), *(percent(row.accuracy[m].value) for m in shown[:2]))),
         *(emphasised(ours, m) for m in shown), *([retrained(ours, shown[1])] * seeds)]
        for levels, ours, theirs in found
    ]  # fmt: skip
    return Table(headings, cells, CAPTION + OTHER_SEEDS * seeds)


def equal_clean_summary(study: Finished) -> list[str]:
    """The same in sentences."""
    lines = []
    for levels, ours, theirs in _pairs(study):
        measure = ours.headline
        figures = [
            f"(λ = {_lambda(row)}) {percent(row.accuracy[measure].value)} % {under(measure)} at "
            f"{percent(row.accuracy['clean'].value)} % clean"
            for row in (ours, theirs)
        ]
        gain, clean = (emphasised(ours, m).strip("*") for m in (measure, "clean"))
        points = "point" if levels == "1" else "points"
        lines.append(
            f"{title_of(ours.method)}, where validation may lose {levels} {points} of clean "
            f"accuracy: TASER {figures[0]}, the isotropic penalty {figures[1]}; TASER {gain} "
            f"points, clean {clean}."
        )
    return lines


def _pairs(study: Finished) -> Iterator[tuple[str, Row, Row]]:
    """The allowances in points, TASER's row with its gain over the isotropic one's, and that."""
    for method in dict.fromkeys(run.method for run in study.runs):
        runs = _comparable(study.runs, method)
        ours, theirs = (sorted({run.variant for run in runs if run.variant.startswith(name + MARK)})
                        for name in ("taser", "gradient"))  # fmt: skip
        if not ours or len(ours) != len(theirs):  # the luck of more draws
            continue
        picked: dict[tuple[str, str], list[float]] = {}
        for allowed in ALLOWED:
            pair = _taken(ours, runs, allowed), _taken(theirs, runs, allowed)
            if "off" not in pair:  # or one of them has nothing to offer
                picked.setdefault(pair, []).append(100 * allowed)
        for pair, levels in picked.items():
            both = Finished(study.queue, [run for run in runs if run.variant in pair])
            one, other = (
                next(row for row in both.rows(baseline=pair[1]) if row.variant == variant)
                for variant in pair
            )
            ends = sorted({levels[0], levels[-1]})
            yield " to ".join(f"{end:g}" for end in ends), one, other


def _taken(variants: Sequence[str], runs: Sequence[RunResult], allowed: float) -> str:
    """What the validation split takes of these and "off", its figures being means over seeds."""
    found: list[dict[str, Any]] = []
    for variant in ("off", *variants):
        own = [run.validation for run in runs if run.variant == variant]
        means = {name: fmean(figures[name] for figures in own) for name in ("clean", "robust")}
        found.append({"variant": variant, **means})
    return best(found, floor=found[0]["clean"] - allowed - 1e-9)["variant"]


def _comparable(runs: Sequence[RunResult], method: str) -> list[RunResult]:
    """A method's runs from scratch over λ, of the seeds that are finished for all of them."""
    own = [run for run in runs if run.method == method and not run.finetuned]
    over = [run for run in own if run.variant == "off" or MARK in run.variant]
    seeds = [{r.seed for r in over if r.variant == v} for v in {"off", *(r.variant for r in over)}]
    shared = set.intersection(*seeds)
    return [run for run in over if run.seed in shared]


def _lambda(row: Row) -> str:
    return row.variant.split(MARK)[1]
