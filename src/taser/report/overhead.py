"""The cost of TASER in the paper's layout: time per example, overhead, memory."""

from pathlib import Path
from typing import Any

from taser.studies.overhead import PLAIN_LOOPS

from ._method_tables import NAMES, PAPER
from ._page import Table
from .bench import write_bench

MODES = {"off": "—", "paper": "+ TASER, the paper's way", "default": "+ TASER, default"}


def tables(result: dict[str, Any]) -> list[Table]:
    """One table for each workload."""
    workloads = dict.fromkeys(cost["workload"] for cost in result["costs"])
    return [_table(name, result) for name in workloads]


def _table(workload: str, result: dict[str, Any]) -> Table:
    cells = []
    for cost in result["costs"]:
        if cost["workload"] != workload:
            continue
        paper = f"×{PAPER[cost['method']][2]:.2f}" if cost["mode"] == "paper" else ""
        cells.append([
            NAMES[cost["method"]], MODES.get(cost["mode"], cost["mode"]),
            f"{cost['milliseconds_per_example']:.1f}", *ratio_cells(cost["timing"]), paper,
        ])  # fmt: skip
    return Table(
        ["method", "", "ms/example", "overhead", "range", "in the paper"], cells,
        f"{workload}: steps of {result['threads']} thread(s), torch {result['torch']}; overhead is "
        f"the median of {result['repetitions']} ratios to a step of the method alone in the same "
        "repetition (the paper's way and the loops in each third), its range beside it.",
    )  # fmt: skip


def ratio_cells(timing: dict[str, float]) -> list[str]:
    """A ratio and its range."""
    return [f"×{timing['ratio']:.2f}", f"{timing['ratio_low']:.2f}–{timing['ratio_high']:.2f}"]


def summary(result: dict[str, Any]) -> list[str]:
    """Whether the aims are met: ×1.5 for standard training, ×1.08 for the others."""
    lines = []
    for cost in result["costs"]:
        ratio = cost["timing"]["ratio"]
        if cost["mode"] == "default":
            aim = 1.5 if cost["method"] == "standard" else 1.08
            reached = "within" if ratio <= aim else "above"
            lines.append(
                f"{cost['workload']}, {NAMES[cost['method']]}: ×{ratio:.2f}, {reached} the "
                f"aim of ×{aim}."
            )
        elif cost["mode"] in PLAIN_LOOPS:
            lines.append(
                f"{cost['workload']}: PGD training makes {ratio:.2f} times the images per second "
                f"of a {cost['mode']}."
            )
    return lines


def write(result: dict[str, Any], out: Path) -> Path:
    """overhead.json and overhead.md in `out`; the path of the latter."""
    return write_bench("overhead", "What TASER costs", result, summary(result), tables(result), out)
