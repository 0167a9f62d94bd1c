"""Which switch saves what."""

from pathlib import Path
from typing import Any

from ._page import Table
from .bench import write_bench
from .overhead import ratio_cells


def tables(result: dict[str, Any]) -> list[Table]:
    """One table for each group of settings."""
    groups = dict.fromkeys(saving["group"] for saving in result["savings"])
    return [_table(group, result) for group in groups]


def _table(group: str, result: dict[str, Any]) -> Table:
    own = [saving for saving in result["savings"] if saving["group"] == group]
    cells = [
        [s["name"], f"{1e3 * s['timing']['seconds']:.0f}", *ratio_cells(s["timing"])]
        for s in own
    ]  # fmt: skip
    return Table(
        [group, "ms/step", f"against “{own[0]['name']}”", "range"],
        cells,
        f"{result['workload']}, {result['threads']} thread(s), torch {result['torch']}, medians of "
        f"{result['repetitions']} interleaved repetitions.",
    )


def summary(result: dict[str, Any]) -> list[str]:
    """The last of each group."""
    last = {saving["group"]: saving for saving in result["savings"]}
    return [f"{group}: {s['name']} ×{s['timing']['ratio']:.2f}." for group, s in last.items()]


def write(result: dict[str, Any], out: Path) -> Path:
    """switches.json and switches.md in `out`; the path of the latter."""
    return write_bench(
        "switches", "Which switch costs what", result, summary(result), tables(result), out
    )
