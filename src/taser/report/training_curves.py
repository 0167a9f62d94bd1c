"""Training curves of many runs: where robust overfitting shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from .lines import looks


def training_figure(logs: Mapping[str, Mapping[str, Sequence[dict[str, Any]]]]) -> Figure:
    """Validation accuracy over training; logs[method][variant] are a run's log lines.

    Solid: under a short PGD; dashed: clean; a dot: where the weights come from, "taken" in a line.
    """
    columns = min(3, len(logs))
    lines = -(-len(logs) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.7 * lines), layout="constrained")
    for place, (method, variants) in enumerate(logs.items(), 1):
        axes = figure.add_subplot(lines, columns, place)
        look = looks(list(variants))
        for variant, log in variants.items():
            seen = [line for line in log if line["kind"] == "validation"]
            epochs = [line["epoch"] for line in seen]
            dots = [place for place, line in enumerate(seen) if line.get("taken")]
            dashed = {"ls": "--", "lw": 1, "label": "_"}
            for measure, other in (("robust", {}), ("clean", dashed)):
                values = [100 * line[measure] for line in seen]
                drawn = {**look[variant], **other}
                axes.plot(epochs, values, marker="o", ms=4, markevery=dots, **drawn)
        axes.set_title(method, fontsize=10)
        axes.set_ylim(0, 102)
        axes.set_xlabel("epoch")
        if place == 1:
            axes.set_ylabel("validation accuracy, %")
            named = axes.get_legend_handles_labels()  # above all: inside it would hide dots
            figure.legend(*named, loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return figure
