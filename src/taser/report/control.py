"""TASER against other penalties as set, and the isotropic one over λ at the same allowed loss."""

from collections.abc import Iterator, Sequence

from taser.studies.table_rows import Row

from .finished import Finished
from .frontier import MARK, families, judged, under
from .method_findings import verdict
from .method_table import MEASURES, emphasised, percent, title_of, variant_of
from .seed_table import retrained
from .table import Table

TUNED = (
    "TASER minus another penalty in points, at the settings of the table: paired 95 % intervals "
    "over the examples, in bold where they exclude zero."
)
OTHER_SEEDS = " Other seeds: the interval had the networks been trained once more as well."
MATCHED = (
    "Over all λ that were tried, equally many for both: the best of each penalty {where} among "
    "those that lose at most so many points of clean accuracy against the method alone, and TASER "
    "minus the isotropic one, in points with a paired 95 % interval, in bold where it excludes "
    "zero. Both were picked by these very figures, which the intervals do not know."
)
ALLOWED = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)  # of clean accuracy


def control_tables(study: Finished) -> list[Table]:
    """What there is of the two comparisons."""
    found = [_tuned(study), *(_matched(study, measure) for measure in judged(study.measures))]
    return [table for table in found if table is not None]


def control_summary(study: Finished) -> list[str]:
    """Where TASER is ahead of the isotropic penalty, and where behind: as set, and over λ."""
    pairs = _against(study, "gradient")
    if not pairs:
        return _matched_summary(study)
    said = []
    for words, change in (
        ("ahead", "raised"), ("behind", "lowered"), ("not told apart", "left")
    ):  # fmt: skip
        names = [
            title_of(row.method, row.finetuned)
            for row in pairs
            if row.gain is not None and verdict(row.gain[row.headline]) == change
        ]
        if names:
            said.append(f"{words} for {', '.join(names)}")
    attack = MEASURES.get(pairs[0].headline, pairs[0].headline)
    line = f"Against the isotropic penalty, under {attack}, TASER is {'; '.join(said)}."
    return [line, *_matched_summary(study)]


def _against(study: Finished, baseline: str) -> list[Row]:
    """TASER's rows with their gain over `baseline`, where a method has both."""
    rows = study.rows(baseline=baseline)
    return [row for row in rows if row.variant == "taser" and row.gain is not None]


def _tuned(study: Finished) -> Table | None:
    variants = dict.fromkeys(run.variant for run in study.runs)
    others = [v for v in variants if v not in ("off", "taser") and MARK not in v]
    pairs = [(other, row) for other in others for row in _against(study, other)]
    if not pairs:
        return None
    first = pairs[0][1]
    measures = [m for m in first.accuracy if m != "worst" or m == first.headline]
    seeds = any(row.gain_retrained for _, row in pairs)
    cells = [
        [title_of(row.method, row.finetuned), variant_of(other),
         *(emphasised(row, m) for m in measures), *([retrained(row, row.headline)] * seeds)]
        for other, row in pairs
    ]  # fmt: skip
    attack = MEASURES.get(first.headline, first.headline)
    headings = ["method", "against", *(f"Δ {MEASURES.get(m, m)}" for m in measures),
                *([f"{attack}, other seeds"] * seeds)]  # fmt: skip
    return Table(headings, cells, TUNED + OTHER_SEEDS * seeds)


def _matched_summary(study: Finished) -> list[str]:
    """A sentence for each comparison over λ."""
    return [
        f"{method}, at most {allowed} points of clean accuracy lost: TASER (λ = {ours}) {robust} % "
        f"{under(measure)} at {clean} % clean, the isotropic penalty (λ = {theirs}) "
        f"{other_robust} % at {other_clean} %; TASER {gain.strip('*')} points."
        for measure in judged(study.measures)
        for method, allowed, ours, clean, robust, theirs, other_clean, other_robust, gain
        in _matched_lines(study, measure)
    ]  # fmt: skip


def _matched_lines(study: Finished, measure: str) -> list[list[str]]:
    """The lines of the table over λ, method by method."""
    methods = dict.fromkeys(run.method for run in study.runs)
    return [line for method in methods for line in _levels(_comparable(study, method), measure)]


def _matched(study: Finished, measure: str) -> Table | None:
    cells = _matched_lines(study, measure)
    if not cells:
        return None
    name = MEASURES.get(measure, measure)
    headings = ["method", "clean loss allowed", "TASER: λ", "clean", name, "isotropic: λ",
                "clean", name, f"Δ {name}"]  # fmt: skip
    return Table(headings, cells, MATCHED.format(where=under(measure)))


def _comparable(study: Finished, method: str) -> Finished:
    """A method's runs from scratch over λ, of the seeds that are finished for all of them."""
    own = [run for run in study.runs if run.method == method and not run.finetuned]
    runs = [run for run in own if run.variant == "off" or MARK in run.variant]
    seeds = [{run.seed for run in runs if run.variant == v} for v in {run.variant for run in runs}]
    shared = set.intersection(*seeds) if seeds else set()
    return Finished(study.queue, [run for run in runs if run.seed in shared])


def _levels(study: Finished, measure: str) -> Iterator[list[str]]:
    """A line for each pair of λ that some allowances pick, where both have something to offer."""
    rows = study.rows() if study.runs else []
    curves, off = families(rows), [row for row in rows if row.variant == "off"]
    ours, theirs = (curves.get(name, []) for name in ("taser", "gradient"))
    if not off or not ours or len(ours) != len(theirs):  # the luck of more draws
        return
    picked: dict[tuple[str, str], tuple[Row, Row, list[float]]] = {}
    for allowed in ALLOWED:
        floor = off[0].accuracy["clean"].value - allowed
        best, other = (_best(curve, floor, measure) for curve in (ours, theirs))
        if best is not None and other is not None:
            pair = (best.variant, other.variant)
            picked.setdefault(pair, (best, other, []))[2].append(100 * allowed)
    for best, other, levels in picked.values():
        rows = study.rows(baseline=other.variant)
        paired = next(row for row in rows if row.variant == best.variant)
        line = [
            title_of(best.method),
            " to ".join(f"{p:g}" for p in sorted({levels[0], levels[-1]})),
        ]
        for row in (best, other):
            line += [row.variant.split(MARK)[1], percent(row.accuracy["clean"].value),
                     percent(row.accuracy[measure].value)]  # fmt: skip
        yield [*line, emphasised(paired, measure)]


def _best(curve: Sequence[Row], floor: float, measure: str) -> Row | None:
    allowed = [row for row in curve if row.accuracy["clean"].value >= floor - 1e-9]
    return max(allowed, key=lambda row: row.accuracy[measure].value, default=None)
