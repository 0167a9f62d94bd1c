"""Models side by side, as a table whose bold figures are ahead beyond doubt."""

from collections.abc import Mapping

from taser.evaluation import Evaluation, Interval, compare
from taser.evaluation.comparison import difference

from .table import Table


def comparison_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """One row a model: accuracy with its 95 % interval, bold where it leads every other model."""
    compared = compare(evaluations)
    rows = [
        [name, *(_cell(cell.accuracy, cell.best) for cell in cells.values())]
        for name, cells in compared.rows.items()
    ]
    return Table(
        ["model", *(f"{column}, %" for column in compared.columns)],
        rows,
        f"n = {compared.n}, the same examples for all; in brackets 95 % bootstrap intervals. Bold: "
        "ahead of every other model by a paired bootstrap whose interval excludes zero.",
    )


def differences_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """One row a pair of models: the difference of their worst cases, paired, and McNemar's p."""
    names = list(evaluations)
    rows = []
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            found = difference(evaluations[first].standing, evaluations[second].standing)
            bounds = f"{100 * found.interval.low:+.1f} to {100 * found.interval.high:+.1f}"
            value = f"{100 * found.interval.value:+.1f}"
            rows.append([f"{first} − {second}", value, bounds, f"{found.p_value:.2g}"])
    return Table(
        ["models", "points", "95 % interval", "McNemar p"],
        rows,
        "Difference of robust accuracy in percentage points, worst case over all attacks.",
    )


def _cell(interval: Interval, best: bool) -> str:
    value = f"{100 * interval.value:.1f}"
    bounds = f"({100 * interval.low:.1f}–{100 * interval.high:.1f})"
    return f"**{value}** {bounds}" if best else f"{value} {bounds}"
