"""Robust against clean accuracy over λ: a panel for each method, a curve for each penalty.

    taser compare experiments/curves.yaml --jobs 2 --out out/curves
    python experiments/frontier.py out/curves

The variants are called "taser λ=0.1", "gradient λ=0.3" and so on. Writes frontier.png to FOLDER.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taser.compare import Row, read_results

MARK = " λ="
NAMES = {"off": "method alone", "taser": "TASER", "gradient": "‖∇m‖²"}
COLOURS = {"off": "#6b7280", "taser": "#2563eb", "gradient": "#d97706"}


def families(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The curves among the rows of one method, each in the order of λ."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if MARK in row.variant:
            found.setdefault(row.variant.split(MARK)[0], []).append(row)
    return {name: sorted(curve, key=lambda row: float(row.variant.split(MARK)[1]))
            for name, curve in found.items()}  # fmt: skip


def draw(rows: Sequence[Row]) -> Figure:
    """The curves with 95 % intervals."""
    rows = [row for row in rows if not row.finetuned]
    methods = list(dict.fromkeys(row.method for row in rows if MARK in row.variant))
    if not methods:
        raise SystemExit("no variant is called such as 'taser λ=0.1'")
    measure = rows[0].headline
    figure = Figure(figsize=(4.6 * len(methods), 3.6), layout="constrained")
    for axes, method in zip(figure.subplots(1, len(methods), squeeze=False)[0], methods,
                            strict=True):  # fmt: skip
        own = [row for row in rows if row.method == method]
        for name, curve in families(own).items():
            _draw_family(axes, curve, measure, name, "o-")
        _draw_family(axes, [row for row in own if row.variant == "off"], measure, "off", "*")
        axes.set(title=method, xlabel="clean accuracy, %", ylabel=f"accuracy, {measure}, %")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3,
                  frameon=False)  # fmt: skip
    return figure


def _draw_family(axes: Axes, curve: Sequence[Row], measure: str, name: str, style: str) -> None:
    clean, robust = ([row.accuracy[m] for row in curve] for m in ("clean", measure))
    (x, xerr), (y, yerr) = (
        ([100 * i.value for i in side],
         [[100 * (i.value - i.low) for i in side], [100 * (i.high - i.value) for i in side]])
        for side in (clean, robust)
    )  # fmt: skip
    colour = COLOURS.get(name, "#059669")
    axes.errorbar(x, y, xerr=xerr, yerr=yerr, fmt=style, label=NAMES.get(name, name), color=colour,
                  ecolor=f"{colour}66", elinewidth=0.8, markersize=5)  # fmt: skip
    for row, *place in zip(curve, x, y, strict=True):
        if MARK in row.variant:
            axes.annotate(row.variant.split(MARK)[1], (place[0], place[1]), fontsize=7,
                          xytext=(4, 3), textcoords="offset points")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw a comparison's folder, or its records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    draw(read_results(folder).rows()).savefig(folder / "frontier.png", dpi=150)
    print(folder / "frontier.png")


if __name__ == "__main__":
    main()
