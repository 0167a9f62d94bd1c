"""Peak memory with TASER, in the layout of its time."""

from pathlib import Path
from typing import Any

from ._method_tables import NAMES
from ._page import Table
from .bench import write_bench
from .overhead import MODES

AIM = 1.3


def table(result: dict[str, Any]) -> Table:
    """A row for each method and mode."""
    cells = [
        [peak["workload"], NAMES[peak["method"]], MODES[peak["mode"]],
         f"{peak['bytes'] / 1e6:.0f}", f"×{peak['ratio']:.2f}"]
        for peak in result["peaks"]
    ]  # fmt: skip
    return Table(
        ["network", "method", "", "peak MB", "against the method alone"], cells,
        f"Resident memory that one step adds, the median of {result['processes']} processes, which "
        f"scatter by a tenth; {result['threads']} thread(s), torch {result['torch']}.",
    )  # fmt: skip


def summary(result: dict[str, Any]) -> list[str]:
    """How many are within the aim, and the highest."""
    own = [peak for peak in result["peaks"] if peak["mode"] == "default"]
    within = sum(peak["ratio"] <= AIM for peak in own)
    most = max(own, key=lambda peak: peak["ratio"])
    return [
        f"By default {within} of {len(own)} within ×{AIM} of the memory without TASER; the highest "
        f"is {NAMES[most['method']]}, {most['workload']}: ×{most['ratio']:.2f}."
    ]


def write(result: dict[str, Any], out: Path) -> Path:
    """memory.json and memory.md in `out`; the path of the latter."""
    return write_bench(
        "memory", "How much memory TASER needs", result, summary(result), [table(result)], out
    )
