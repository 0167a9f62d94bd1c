"""TASER against other penalties as set, and the isotropic one over λ for the same loss."""

from taser.studies.table_rows import Row

from .equal_clean import equal_clean_summary, equal_clean_table
from .finished import Finished
from .frontier import MARK
from .method_findings import verdict
from .method_table import MEASURES, emphasised, title_of, variant_of
from .seed_table import OTHER_SEEDS, retrained
from .table import Table

TUNED = (
    "TASER minus another penalty in points, at the settings of the table: paired 95 % intervals "
    "over the examples, in bold where they exclude zero."
)


def control_tables(study: Finished) -> list[Table]:
    """What there is of the two comparisons."""
    return [table for table in (_tuned(study), equal_clean_table(study)) if table is not None]


def control_summary(study: Finished) -> list[str]:
    """Where TASER is ahead of the isotropic penalty, and where behind: as set, and over λ."""
    pairs = _against(study, "gradient")
    if not pairs:
        return equal_clean_summary(study)
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
    return [line, *equal_clean_summary(study)]


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
