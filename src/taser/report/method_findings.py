"""What a table of methods says, in sentences: supported, not supported, at which cost."""

from collections.abc import Sequence

from taser.evaluation.statistics import Interval
from taser.studies.table_rows import Row

from .method_table import MEASURES, bounds, interval, title_of


def summary(rows: Sequence[Row]) -> list[str]:
    """One sentence for each method, and one that counts them."""
    lines, helped, lasting, total = [], 0, 0, 0
    for row in rows:
        if row.variant != "taser" or row.gain is None:
            continue
        total += 1
        measure = row.headline
        helped += row.supported(measure)
        lasting += row.lasting(measure)
        lines.append(_sentence(row, _control(rows, row), measure))
    if not total:
        others = any(row.gain is not None for row in rows)
        return [] if others else ["No run with TASER is finished yet."]
    attack = MEASURES.get(rows[0].headline, rows[0].headline)
    first = (
        f"Under attack ({attack}) TASER's gain is supported (paired 95 % interval above zero) for "
        f"{helped} of {total} comparisons"
    )
    if any(row.gain_retrained for row in rows):
        first += f", and for {lasting} of these by the interval that holds other seeds as well"
    return [f"{first}.", *lines]


def verdict(gain: Interval) -> str:
    """What a paired interval says: raised, lowered, or left."""
    return "raised" if gain.low > 0 else "lowered" if gain.high < 0 else "left"


def _sentence(row: Row, control: Row | None, measure: str) -> str:
    assert row.gain is not None
    gain, clean = row.gain[measure], row.gain["clean"]
    change = verdict(gain)
    where = "" if change != "left" else " without a supported change"
    text = (
        f"{title_of(row.method, row.finetuned)}: TASER {change} robust accuracy{where}, "
        f"{interval(gain)} points{_retrained(row, measure)}, with clean accuracy {interval(clean)}"
    )
    if control is not None and control.gain is not None:
        text += (
            f"; the isotropic penalty {interval(control.gain[measure])}, clean "
            f"{interval(control.gain['clean'])}"
        )
    return text + "."


def _retrained(row: Row, measure: str) -> str:
    found = row.gain_retrained
    return f" ({bounds(found[measure])} with other seeds)" if found else ""


def _control(rows: Sequence[Row], row: Row) -> Row | None:
    same = (r for r in rows if (r.method, r.finetuned) == (row.method, row.finetuned))
    return next((r for r in same if r.variant == "gradient"), None)
