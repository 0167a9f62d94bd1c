"""The cost of TASER in the paper's layout: time per example, overhead, memory."""

import json
from pathlib import Path
from typing import Any

from taser.files import write_atomically
from taser.studies.overhead import PLAIN_LOOP

from .method_table import NAMES, PAPER
from .table import Table

MODES = {"off": "—", "paper": "+ TASER, the paper's way", "default": "+ TASER, default",
         PLAIN_LOOP: PLAIN_LOOP}  # fmt: skip


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
        memory = [
            f"{cost['memory'] / 1e6:.0f}", f"×{cost['memory_ratio']:.2f}"
        ] if cost["memory"] else ["", ""]  # fmt: skip
        cells.append([
            NAMES[cost["method"]], MODES[cost["mode"]], f"{cost['milliseconds_per_example']:.1f}",
            f"×{cost['ratio']:.2f}", f"{cost['ratio_low']:.2f}–{cost['ratio_high']:.2f}", paper,
            *memory,
        ])  # fmt: skip
    headings = [
        "method",
        "",
        "ms/example",
        "overhead",
        "range",
        "in the paper",
        "peak MB",
        "memory",
    ]
    return Table(
        headings, cells,
        f"{workload}: steps of {result['threads']} thread(s), torch {result['torch']}; overhead is "
        f"the median of {result['repetitions']} ratios to a step of the method alone in the same "
        "repetition, its range beside it.",
    )  # fmt: skip


def summary(result: dict[str, Any]) -> list[str]:
    """Whether the aims are met: ×1.5 for standard training, ×1.08 for the others, memory ×1.3."""
    lines = []
    for cost in result["costs"]:
        if cost["mode"] == "default":
            aim = 1.5 if cost["method"] == "standard" else 1.08
            reached = "within" if cost["ratio"] <= aim else "above"
            lines.append(
                f"{cost['workload']}, {NAMES[cost['method']]}: ×{cost['ratio']:.2f}, {reached} the "
                f"aim of ×{aim}"
                + (f"; memory ×{cost['memory_ratio']:.2f}" if cost["memory_ratio"] else "")
                + "."
            )
        elif cost["mode"] == PLAIN_LOOP:
            lines.append(
                f"{cost['workload']}: PGD training makes {cost['ratio']:.2f} times the images per "
                "second of a straightforward loop."
            )
    return lines


def write(result: dict[str, Any], out: Path) -> Path:
    """overhead.json and overhead.md in `out`; the path of the latter."""
    write_atomically(out / "overhead.json", json.dumps(result, indent=1) + "\n")
    text = "\n".join(f"- {line}" for line in summary(result))
    parts = "\n\n".join(table.markdown() for table in tables(result))
    return write_atomically(out / "overhead.md", f"# What TASER costs\n\n{text}\n\n{parts}")
