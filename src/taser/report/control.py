"""TASER against the isotropic penalty: as tuned, and over λ at equal clean accuracy."""

from collections.abc import Iterator, Sequence

from taser.studies.table_rows import Row

from .finished import Finished
from .frontier import families
from .method_findings import verdict
from .method_table import MEASURES, emphasised, percent, title_of
from .table import Table

TUNED = (
    "TASER minus the isotropic penalty, each as tuned, in points: paired 95 % intervals over the "
    "examples, in bold where they exclude zero."
)
MATCHED = (
    "Over all λ that were tried: the most robust of each penalty among those that lose at most so "
    "much clean accuracy against the method alone, and TASER minus the isotropic one in points, "
    "with paired 95 % intervals. Both were picked by these very figures, with equally many λ."
)
ALLOWED = (0.005, 0.01, 0.02, 0.05)  # of clean accuracy


def control_tables(study: Finished) -> list[Table]:
    """What there is of the two comparisons."""
    found = [_tuned(study), _matched(study)]
    return [table for table in found if table is not None]


def control_summary(study: Finished) -> list[str]:
    """One sentence: where TASER is ahead of the isotropic penalty, and where behind."""
    pairs = [row for row in _against(study, "gradient") if row.variant == "taser"]
    if not pairs:
        return []
    said = []
    for words, change in (("ahead", "raised"), ("behind", "lowered"), ("level", "left")):
        names = [
            title_of(row.method, row.finetuned)
            for row in pairs
            if row.gain is not None and verdict(row.gain[row.headline]) == change
        ]
        if names:
            said.append(f"{words} for {', '.join(names)}")
    attack = MEASURES.get(pairs[0].headline, pairs[0].headline)
    return [f"Against the isotropic penalty, as tuned, under {attack}, TASER is {'; '.join(said)}."]


def _against(study: Finished, baseline: str) -> list[Row]:
    """The rows whose gain over `baseline` is known."""
    return [row for row in study.rows(baseline=baseline) if row.gain is not None]


def _tuned(study: Finished) -> Table | None:
    pairs = [row for row in _against(study, "gradient") if row.variant == "taser"]
    if not pairs:
        return None
    measures = [m for m in pairs[0].accuracy if m in MEASURES]
    cells = [
        [title_of(row.method, row.finetuned), *(emphasised(row, m) for m in measures)]
        for row in pairs
    ]
    return Table(["method", *(f"Δ {MEASURES[m]}" for m in measures)], cells, TUNED)


def _matched(study: Finished) -> Table | None:
    found = [row for row in study.rows() if not row.finetuned]
    cells = [
        line
        for method in dict.fromkeys(row.method for row in found)
        for line in _levels(study, [row for row in found if row.method == method])
    ]
    if not cells:
        return None
    attack = MEASURES.get(found[0].headline, found[0].headline)
    headings = ["method", "clean loss allowed", "TASER: λ", "clean", attack, "isotropic: λ",
                "clean", attack, f"Δ {attack}"]  # fmt: skip
    return Table(headings, cells, MATCHED)


def _levels(study: Finished, rows: Sequence[Row]) -> Iterator[list[str]]:
    """A line for each allowance at which both penalties have something to offer."""
    curves, off = families(rows), [row for row in rows if row.variant == "off"]
    if not off or not {"taser", "gradient"} <= curves.keys():
        return
    for allowed in ALLOWED:
        floor = off[0].accuracy["clean"].value - allowed
        ours, theirs = (_most_robust(curves[name], floor) for name in ("taser", "gradient"))
        if ours is None or theirs is None:
            continue
        paired = next(
            row
            for row in study.rows(baseline=theirs.variant)
            if (row.method, row.variant, row.finetuned) == (ours.method, ours.variant, False)
        )
        line = [title_of(ours.method), f"{100 * allowed:g}"]
        for row in (ours, theirs):
            line += [row.variant.split("=")[1], percent(row.accuracy["clean"].value),
                     percent(row.accuracy[row.headline].value)]  # fmt: skip
        yield [*line, emphasised(paired, paired.headline)]


def _most_robust(curve: Sequence[Row], floor: float) -> Row | None:
    allowed = [row for row in curve if row.accuracy["clean"].value >= floor - 1e-9]
    return max(allowed, key=lambda row: row.accuracy[row.headline].value, default=None)
