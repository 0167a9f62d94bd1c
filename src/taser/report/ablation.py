"""The report of an ablation: which changes raise or lower what, against TASER as it is."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from taser.compare._run_results import Row
from taser.studies.ablation import DEFAULT

from . import _comparison_report as method_study
from ._method_tables import (
    COLOURS,
    MARK,
    MEASURES,
    Finished,
    interval,
    main_table,
    title_of,
    verdict,
)
from ._page import Picture, png

CHANGES = (
    "Robust accuracy with one part changed, against TASER as it is, with paired 95 % intervals "
    "over the examples; grey where the interval includes zero."
)


def changes(study: Finished) -> list[Row]:
    """The rows with one part changed; gains are over TASER as it is."""
    found = study.rows(baseline=DEFAULT)
    return [row for row in found if row.variant != "off" and MARK not in row.variant]


def summary(found: Sequence[Row]) -> list[str]:
    """For each method, what the changes did to robust accuracy."""
    if not found:
        return ["No run with TASER is finished yet."]
    measure = found[0].headline
    lines = []
    for method in dict.fromkeys(row.method for row in found):
        own = [row for row in found if row.method == method and row.gain is not None]
        said = []
        for change in ("raised", "lowered", "left"):
            names = [
                f"{row.variant} ({interval(row.gain[measure])})"
                for row in own
                if row.gain is not None and verdict(row.gain[measure]) == change
            ]
            if names:
                said.append(f"{change if change != 'left' else 'no supported change'}: "
                            + "; ".join(names))  # fmt: skip
        text = ". ".join(words[:1].upper() + words[1:] for words in said)
        lines.append(
            f"{title_of(method)}, accuracy under {MEASURES.get(measure, measure)} against TASER as "
            f"it is. {text}."
        )
    return lines


def draw_changes(found: Sequence[Row]) -> Figure:
    """Every change as a point with its interval, the best on top; a panel for each method."""
    changed = [row for row in found if row.gain is not None]
    methods = list(dict.fromkeys(row.method for row in changed))
    most = max(sum(row.method == method for row in changed) for method in methods)
    size = (6.5 * len(methods), 1.2 + 0.26 * most)
    figure = Figure(figsize=size, layout="constrained")
    for axes, method in zip(figure.subplots(1, len(methods), squeeze=False)[0], methods,
                            strict=True):  # fmt: skip
        gains = {
            row.variant: row.gain[row.headline] for row in changed
            if row.method == method and row.gain is not None
        }  # fmt: skip
        ranked = sorted(gains.items(), key=lambda entry: entry[1].value)
        for height, (_, gain) in enumerate(ranked):
            shade = "0.5" if verdict(gain) == "left" else COLOURS["taser"]
            axes.plot([100 * gain.low, 100 * gain.high], [height, height], color=shade)
            axes.plot(100 * gain.value, height, "o", color=shade, ms=5)
        axes.axvline(0, color="0.5", linestyle="--", linewidth=0.8)
        axes.set_yticks(range(len(ranked)), [name for name, _ in ranked])
        measure = changed[0].headline
        label = f"Δ accuracy under {MEASURES.get(measure, measure)}, points"
        axes.set(title=title_of(method), xlabel=label)
    return figure


def write(study: Finished, out: Path) -> tuple[Path, list[str]]:
    """report.html, table.md, table.tex and rows.json in `out`; the page, and its summary."""
    found = changes(study)
    table = main_table(found, against="TASER as it is")
    compared = any(row.gain for row in found)
    pictures = [Picture(png(draw_changes(found)), CHANGES)] if compared else []
    return method_study.write(
        study, out, title="Which part of TASER does what", conclusion=summary(found), paper=False,
        extra=[("One part changed", [*pictures, table])],
    )  # fmt: skip
