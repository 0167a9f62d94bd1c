"""What would change with other seeds: the scatter of trainings, beside that of examples."""

from collections.abc import Sequence

from taser.studies.table_rows import Row

from .method_table import MEASURES, bold_if_sure, bounds, title_of, variant_of
from .table import Table

CAPTION = (
    "Gains by seed: the lowest and the highest. With other seeds: the 95 % interval had the "
    "networks been trained once more and other examples drawn (Student's t over seeds and "
    "examples), in bold where it excludes zero; all other intervals take the networks as they are."
)
OTHER_SEEDS = " Other seeds: the interval had the networks been trained once more as well."


def seed_table(rows: Sequence[Row], *, finetuned: bool = False) -> Table | None:
    """Of the gains in clean and in robust accuracy; None where every row has one seed."""
    chosen = [row for row in rows if row.finetuned == finetuned and row.gain_retrained]
    if not chosen:
        return None
    measures = ["clean", chosen[0].headline]
    headings = ["method", "variant", "seeds"]
    for measure in measures:
        headings += [f"Δ {MEASURES.get(measure, measure)} by seed", "with other seeds"]
    cells = []
    for row in chosen:
        line = [title_of(row.method), variant_of(row.variant), str(row.seeds)]
        for measure in measures:
            line += [_by_seed(row, measure), retrained(row, measure)]
        cells.append(line)
    return Table(headings, cells, CAPTION)


def _by_seed(row: Row, measure: str) -> str:
    assert row.gain_range is not None
    low, high = row.gain_range[measure]
    return f"{100 * low:+.1f} … {100 * high:+.1f}"


def retrained(row: Row, measure: str) -> str:
    """The bounds of the gain with other seeds, in bold where they exclude zero; "" for one seed."""
    if row.gain_retrained is None:
        return ""
    found = row.gain_retrained[measure]
    return bold_if_sure(bounds(found), found)
