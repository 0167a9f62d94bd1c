"""TASER against the isotropic penalty over λ, each chosen for the same loss of clean accuracy."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from taser.studies.search import best
from taser.studies.table import RunResult
from taser.studies.table_rows import Row

from .finished import Finished
from .frontier import MARK, families, judged, under
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
        comparable = _comparable(study, method)
        rows = comparable.rows() if comparable.runs else []
        curves = families(rows)
        off = next((row for row in rows if row.variant == "off"), None)
        ours, theirs = (curves.get(name, []) for name in ("taser", "gradient"))
        if off is None or not ours or len(ours) != len(theirs):  # the luck of more draws
            continue
        picked: dict[tuple[str, str], list[float]] = {}
        for allowed in ALLOWED:
            one, other = (_taken([off, *curve], comparable.runs, allowed)
                          for curve in (ours, theirs))  # fmt: skip
            if "off" not in (one, other):  # or one of them has nothing to offer
                picked.setdefault((one, other), []).append(100 * allowed)
        for (one, other), levels in picked.items():
            by_name = {row.variant: row for row in comparable.rows(baseline=other)}
            ends = sorted({levels[0], levels[-1]})
            yield " to ".join(f"{end:g}" for end in ends), by_name[one], by_name[other]


def _taken(curve: Sequence[Row], runs: Sequence[RunResult], allowed: float) -> str:
    """The variant that the validation split takes, its figures being means over seeds."""
    found: list[dict[str, Any]] = []
    for row in curve:
        own = [run.validation for run in runs if run.variant == row.variant]
        means = {name: fmean(figures[name] for figures in own) for name in ("clean", "robust")}
        found.append({"variant": row.variant, **means})
    return best(found, floor=found[0]["clean"] - allowed - 1e-9)["variant"]


def _comparable(study: Finished, method: str) -> Finished:
    """A method's runs from scratch over λ, of the seeds that are finished for all of them."""
    own = [run for run in study.runs if run.method == method and not run.finetuned]
    runs = [run for run in own if run.variant == "off" or MARK in run.variant]
    seeds = [{run.seed for run in runs if run.variant == v} for v in {run.variant for run in runs}]
    shared = set.intersection(*seeds) if seeds else set()
    return Finished(study.queue, [run for run in runs if run.seed in shared])


def _lambda(row: Row) -> str:
    return row.variant.split(MARK)[1]
