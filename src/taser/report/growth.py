"""Time and memory against probes, batch, pixels and depth: a plot and a table."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, ScalarFormatter

from taser._files import write_atomically

from ._page import Table, png
from .bench import write_bench

LABELS = {"probes": "probes K", "batch": "batch", "pixels": "pixels, width²",
          "depth": "layers"}  # fmt: skip


def draw(result: dict[str, Any]) -> Figure:
    """Two rows, time and memory; a column for each axis; dotted is linear growth."""
    curves = result["curves"]
    figure = Figure(figsize=(3.2 * len(curves), 5.6), layout="constrained")
    grid = figure.subplots(2, len(curves), squeeze=False)
    for column, (axis, curve) in zip(grid.T, curves.items(), strict=True):
        amounts = [point["amount"] for point in curve["points"]]
        milliseconds = [1e3 * point["seconds"] for point in curve["points"]]
        plain = [1e3 * point["plain_seconds"] for point in curve["points"]]
        megabytes = [point["memory"] / 1e6 for point in curve["points"]]
        column[0].plot(amounts, milliseconds, "o-", label="with TASER")
        column[0].plot(amounts, plain, "s-", color="0.5", label="without")
        column[1].plot(amounts, megabytes, "o-")
        for axes, costs in zip(column, (milliseconds, megabytes), strict=True):
            linear = [costs[-1] * amount / amounts[-1] for amount in amounts]
            axes.plot(amounts, linear, "k:", linewidth=0.8)
            axes.set(xscale="log", yscale="log", xlabel=LABELS[axis])
            axes.set_xticks(amounts, [str(amount) for amount in amounts])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_formatter(NullFormatter())
    grid[0, 0].set_ylabel("step, ms")
    grid[1, 0].set_ylabel("peak memory, MB")
    grid[0, 0].legend(frameon=False)
    return figure


def table(result: dict[str, Any]) -> Table:
    """The exponents: one is linear, less is better."""
    cells = [
        [LABELS[axis], ", ".join(str(p["amount"]) for p in curve["points"]),
         f"{curve['time_exponent']:.2f}", f"{curve['memory_exponent']:.2f}"]
        for axis, curve in result["curves"].items()
    ]  # fmt: skip
    return Table(
        ["against", "from … to", "exponent of time", "exponent of memory"], cells,
        "cost ∝ size^p of a training step with the full operator (difference backend), a "
        f"WideResNet of factor 1; {result['threads']} thread(s), torch {result['torch']}.",
    )  # fmt: skip


def summary(result: dict[str, Any]) -> list[str]:
    """Whether any growth is worse than linear, beyond what timing scatters."""
    worst = max(
        (curve[f"{kind}_exponent"], f"{kind} against {LABELS[axis]}")
        for axis, curve in result["curves"].items()
        for kind in ("time", "memory")
    )
    return [f"The steepest growth is {worst[1]}, with exponent {worst[0]:.2f} (linear is 1)."]


def write(result: dict[str, Any], out: Path) -> Path:
    """growth.json, growth.md and growth.png in `out`; the path of the second."""
    write_atomically(out / "growth.png", png(draw(result)))
    return write_bench(
        "growth", "How cost grows", result, summary(result), [table(result)], out,
        "![growth](growth.png)",
    )  # fmt: skip
