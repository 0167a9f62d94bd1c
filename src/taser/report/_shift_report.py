"""Accuracy under shift, and signs of foreign inputs, as a page and as lines for the terminal."""

import json
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from taser._files import write_atomically
from taser.evaluation._corruptions import CORRUPTIONS, SEVERITIES
from taser.evaluation._out_of_distribution import OutOfDistribution
from taser.evaluation._shift import Shift
from taser.evaluation._statistics import Interval

from ._page import Block, Page, Picture, Table, png

SHEET = "One picture, clean (left) and at severities 1 to 5 of each corruption."


def write(
    shift: Shift, detection: OutOfDistribution | None, title: str, out: Path, *, example: Tensor
) -> Path:
    """results.json, table.md and report.html in `out`; the page's path.

    example: a picture to show corrupted, (C, H, W).
    """
    numbers = {"shift": shift.numbers()}
    sections: list[tuple[str, list[Block]]] = [
        ("Corruptions", [table(shift), *_skipped(shift)]),
        ("What they look like", [Picture(png(sheet(example, shift)), SHEET)]),
    ]
    tables = table(shift).markdown()
    if detection is not None:
        numbers["out_of_distribution"] = detection.numbers()
        sections.append(("Foreign inputs", [signs_table(detection)]))
        tables += "\n" + signs_table(detection).markdown()
    write_atomically(out / "results.json", json.dumps(numbers, indent=1) + "\n")
    write_atomically(out / "table.md", tables)
    page = Page(
        title=f"Shift: {title}",
        summary=summary(shift, detection),
        sections=sections,
        footer=f"taser shift; n = {len(shift.clean)} examples, seed {shift.seed}.",
    )
    return page.write(out / "report.html")


def summary(shift: Shift, detection: OutOfDistribution | None) -> list[str]:
    """What to think of it, in plain language."""
    worst = min(shift.correct, key=lambda name: shift.accuracy(name).value)
    lines = [
        f"Accuracy {_percent(shift.clean_accuracy)} % clean, {_percent(shift.accuracy())} % on "
        f"average over {len(shift.correct)} corruptions and five severities "
        f"(n = {len(shift.clean)}, 95 % intervals).",
        f"The worst is {worst}: {_percent(shift.accuracy(worst))} %.",
    ]
    detections = detection.detections if detection else ()
    for against in dict.fromkeys(found.against for found in detections):
        found = [d for d in detections if d.against == against]
        best = max(found, key=lambda d: d.auroc.value)
        stein = next(d for d in found if d.sign == "Stein residual, centred")
        lines.append(
            f"To tell {against} inputs: AUROC {_area(stein.auroc)} by the centred Stein residual; "
            f"the largest is that of {best.sign}, {_area(best.auroc)}."
        )
    return lines + _skipped(shift)


def table(shift: Shift) -> Table:
    """One row a corruption."""
    return Table(
        ["corruption", *(f"severity {severity}" for severity in SEVERITIES), "mean"],
        [
            ["none", *["–"] * len(SEVERITIES), _percent(shift.clean_accuracy)],
            *(
                [name, *(f"{100 * shift.accuracy(name, s).value:.1f}" for s in SEVERITIES),
                 _percent(shift.accuracy(name))]
                for name in shift.correct
            ),
            ["all", *(f"{100 * shift.accuracy(severity=s).value:.1f}" for s in SEVERITIES),
             _percent(shift.accuracy())],
        ],
        f"Accuracy in %, n = {len(shift.clean)}; in brackets 95 % bootstrap intervals.",
    )  # fmt: skip


def signs_table(detection: OutOfDistribution) -> Table:
    """One row a sign, one column a set of foreign inputs."""
    area = {(d.sign, d.against): d for d in detection.detections}
    sets = {d.against: d.m for d in detection.detections}
    return Table(
        ["sign", *(f"{name} (m = {m})" for name, m in sets.items())],
        [
            [sign, *(_area(area[sign, name].auroc) for name in sets)]
            for sign in dict.fromkeys(sign for sign, _ in area)
        ],
        f"AUROC against n = {detection.detections[0].n} inputs of the data, with 95 % bootstrap "
        "intervals: ½ is chance, under ½ the sign is smaller for foreign inputs.",
    )


def sheet(example: Tensor, shift: Shift) -> Figure:
    """One row a corruption, one column a severity."""
    shown = [corruption for corruption in CORRUPTIONS if corruption.name in shift.correct]
    figure = Figure(figsize=(7, 1.1 * len(shown)))
    grid = figure.subplots(len(shown), len(SEVERITIES) + 1, squeeze=False)
    for row, corruption in zip(grid, shown, strict=True):
        corrupted = [corruption(example[None], s, seed=shift.seed)[0] for s in SEVERITIES]
        for axes, picture in zip(row, [example, *corrupted], strict=True):
            axes.imshow(picture.permute(1, 2, 0).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
            axes.axis("off")
        row[0].set_title(corruption.name, fontsize=8, loc="left")
    return figure


def _percent(accuracy: Interval) -> str:
    return f"{100 * accuracy.value:.1f} [{100 * accuracy.low:.1f}, {100 * accuracy.high:.1f}]"


def _area(area: Interval) -> str:
    return f"{area.value:.3f} [{area.low:.3f}, {area.high:.3f}]"


def _skipped(shift: Shift) -> list[str]:
    return [f"Skipped: {name}: {reason}." for name, reason in shift.skipped.items()]
