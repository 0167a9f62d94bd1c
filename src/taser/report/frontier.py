"""Robust against clean accuracy over λ: penalties are compared at equal clean accuracy."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taser.studies.table_rows import Row, headline

from .lines import colour, label
from .method_table import MEASURES, title_of

MARK = " λ="
"""Variants called "taser λ=0.1", "taser λ=0.3", … are points of one curve, "taser"."""


def families(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The curves among the rows of one method, each in the order of λ."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if MARK in row.variant:
            found.setdefault(row.variant.split(MARK)[0], []).append(row)
    for curve in found.values():
        curve.sort(key=lambda row: float(row.variant.split(MARK)[1]))
    return found


def draw_frontier(rows: Sequence[Row]) -> Figure | None:
    """A line of panels for each method, one for each measure; a curve for each penalty, with 95 %
    intervals. None without λ.
    """
    rows = [row for row in rows if not row.finetuned]
    methods = list(dict.fromkeys(row.method for row in rows if MARK in row.variant))
    if not methods:
        return None
    measures = judged(list(rows[0].accuracy))
    panels = [(method, measure) for method in methods for measure in measures]
    size = (4.6 * len(measures), 3.6 * len(methods))
    figure = Figure(figsize=size, layout="constrained")
    places = figure.subplots(len(methods), len(measures), squeeze=False).flat
    for axes, (method, measure) in zip(places, panels, strict=True):
        own = [row for row in rows if row.method == method]
        for name, curve in families(own).items():
            _plot(axes, curve, measure, name, "o-")
        _plot(axes, [row for row in own if row.variant == "off"], measure, "off", "*")
        axes.set(
            title=title_of(method), xlabel="clean accuracy, %",
            ylabel=f"accuracy {under(measure)}, %",
        )  # fmt: skip
    named = figure.axes[0].get_legend_handles_labels()  # above all: inside it would hide points
    figure.legend(*named, loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    return figure


def judged(measures: Sequence[str]) -> list[str]:
    """What penalties are compared by: the attack that counts, and corruptions if asked for."""
    return [headline(measures), *(["corrupted"] if "corrupted" in measures else [])]


def under(measure: str) -> str:
    """After the word "accuracy"."""
    name = MEASURES.get(measure, measure)
    return "under corruptions" if measure == "corrupted" else f"under {name}"


def _plot(axes: Axes, curve: Sequence[Row], measure: str, name: str, style: str) -> None:
    clean, robust = ([row.accuracy[m] for row in curve] for m in ("clean", measure))
    errors = [
        [[100 * (i.value - i.low) for i in side], [100 * (i.high - i.value) for i in side]]
        for side in (clean, robust)
    ]
    axes.errorbar(
        [100 * i.value for i in clean], [100 * i.value for i in robust], xerr=errors[0],
        yerr=errors[1], fmt=style, label=label(name), color=colour(name),
        ecolor=f"{colour(name)}66", elinewidth=0.8, markersize=5,
    )  # fmt: skip
    for row, x, y in zip(curve, clean, robust, strict=True):
        if MARK in row.variant:
            axes.annotate(
                row.variant.split(MARK)[1], (100 * x.value, 100 * y.value), fontsize=7,
                xytext=(4, 3), textcoords="offset points",
            )  # fmt: skip
