"""Models side by side, as a table whose bold figures are ahead beyond doubt."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from taser.evaluation import Evaluation, Interval, compare
from taser.evaluation.comparison import differences
from taser.files import write_atomically

from .page import Page
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
    rows = []
    for (first, second), found in differences(evaluations).items():
        bounds = f"{100 * found.interval.low:+.1f} to {100 * found.interval.high:+.1f}"
        value = f"{100 * found.interval.value:+.1f}"
        rows.append([f"{first} − {second}", value, bounds, f"{found.p_value:.2g}"])
    return Table(
        ["models", "points", "95 % interval", "McNemar p"],
        rows,
        "Difference of robust accuracy in percentage points, worst case over the "
        "attacks that all have in common.",
    )


def summary(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Which of each pair is ahead, or that the data do not say."""
    lines = []
    for (first, second), found in differences(evaluations).items():
        ahead, behind = (first, second) if found.interval.value > 0 else (second, first)
        lines.append(
            f"{ahead} is more robust than {behind} by {100 * abs(found.interval.value):.1f} points."
            if found.interval.excludes_zero()
            else f"Between {first} and {second} these examples do not decide."
        )
    return lines


def write(evaluations: Mapping[str, Evaluation], out: Path) -> Path:
    """results.json, table.md and report.html in `out`; the page's path."""
    both = [comparison_table(evaluations), differences_table(evaluations)]
    numbers = {
        "rows": {
            name: {column: asdict(cell) for column, cell in row.items()}
            for name, row in compare(evaluations).rows.items()
        },
        "differences": [
            {"first": first, "second": second, **asdict(found)}
            for (first, second), found in differences(evaluations).items()
        ],
    }
    write_atomically(out / "results.json", json.dumps(numbers, indent=1) + "\n")
    write_atomically(out / "table.md", "\n\n".join(table.markdown() for table in both))
    threat = next(iter(evaluations.values())).threat
    page = Page(
        f"Models side by side, {threat}", summary(evaluations),
        [("Accuracy", both[:1]), ("Pairs", both[1:])], "taser compare",
    )  # fmt: skip
    return page.write(out / "report.html")


def _cell(interval: Interval, best: bool) -> str:
    value = f"{100 * interval.value:.1f}"
    bounds = f"({100 * interval.low:.1f}–{100 * interval.high:.1f})"
    return f"**{value}** {bounds}" if best else f"{value} {bounds}"
