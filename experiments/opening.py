"""The README's opening picture, from figures that are in results/ and benchmarks/results/.

python experiments/opening.py --out docs/opening.png
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
COLOURS = {"plain": "#6b7280", "‖∇m‖₁": "#d97706", "TASER": "#2563eb", "PGD-10": "#059669"}
COSTS = {
    "plain": "plain", "‖∇m‖₁": "‖∇m‖₁, the whole batch",
    "TASER": "TASER, each example in each step", "PGD-10": "PGD-10",
}  # fmt: skip


def read(path: str) -> Any:
    """A file of figures."""
    return json.loads((ROOT / path).read_text())


def measured() -> dict[str, dict[str, float]]:
    """By title, the figure of each loss on Fashion-MNIST; the time is that of its network."""
    rows = {(row["method"], row["variant"]): row["accuracy"]
            for row in read("results/fashion-mnist/figures.json")["rows"]}  # fmt: skip
    table = {"plain": rows["standard", "off"], "TASER": rows["standard", "taser"],
             "PGD-10": rows["pgd", "off"]}  # fmt: skip
    found = {name: (row["clean"]["value"], row["autoattack"]["value"])
             for name, row in table.items()}  # fmt: skip
    norm = read("results/white/figures.json")["runs"]["fashion-weaker"]
    found["‖∇m‖₁"] = norm["clean"], norm["autoattack"]
    times = read("benchmarks/results/two_lines.json")["times"]["small CNN, 28×28"]
    return {
        "clean accuracy, %": {name: 100 * found[name][0] for name in COLOURS},
        "under AutoAttack, ε = 0.1, %": {name: 100 * found[name][1] for name in COLOURS},
        "time of a training step": {name: times[COSTS[name]]["ratio"] for name in COLOURS},
    }


def draw(panels: dict[str, dict[str, float]]) -> Figure:
    """A panel of bars for each title, with the numbers on the bars."""
    figure = Figure(figsize=(9, 2.4), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True)
    for place, (title, bars) in zip(axes, panels.items(), strict=True):
        form = "×{:.1f}" if "time" in title else "{:.1f}"
        drawn = place.barh(list(bars), list(bars.values()), color=list(COLOURS.values()))
        place.bar_label(drawn, fmt=form, padding=3, fontsize=10)
        place.set_title(title, fontsize=11)
        place.set(xlim=(0, 1.2 * max(bars.values())), xticks=[])
        place.spines[["top", "right", "bottom"]].set_visible(False)
        place.tick_params(left=False, labelsize=11)
    axes[0].invert_yaxis()
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "opening.png")
    out = parser.parse_args(arguments).out
    draw(measured()).savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    main()
