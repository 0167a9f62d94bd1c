"""Accuracy under corruptions and out-of-distribution detection, as a page and as lines."""

from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from taser.evaluation import Interval
from taser.evaluation._corruptions import CORRUPTIONS, SEVERITIES, Shift
from taser.evaluation._out_of_distribution import OutOfDistribution

from ._page import Page, Picture, Table, png, show_image, with_bounds

SHEET = "One image, clean (left) and at severities 1 to 5 of each corruption."


def write(
    shift: Shift, detection: OutOfDistribution, title: str, out: Path, *, example: Tensor
) -> Path:
    """results.json, table.md and report.html in `out`; the page's path.

    example: an image to show corrupted, (C, H, W).
    """
    page = Page(
        f"Shift: {title}",
        summary(shift, detection),
        [
            ("Corruptions", [table(shift), *_skipped(shift)]),
            ("What they look like", [Picture(png(sheet(example, shift)), SHEET)]),
            ("Out-of-distribution inputs", [detection_table(detection)]),
        ],
        f"taser shift; n = {len(shift.clean)} examples, seed {shift.seed}.",
    )
    numbers = {"shift": shift.numbers(), "out_of_distribution": detection.numbers()}
    return page.write_report(out, numbers)


def summary(shift: Shift, detection: OutOfDistribution) -> list[str]:
    """The main figures as sentences."""
    worst = min(shift.correct, key=lambda name: shift.accuracy(name).value)
    lines = [
        f"Accuracy {with_bounds(shift.clean_accuracy)} % clean, {with_bounds(shift.accuracy())} % "
        f"on average over {len(shift.correct)} corruptions and five severities "
        f"(n = {len(shift.clean)}, 95 % intervals).",
        f"The worst is {worst}: {with_bounds(shift.accuracy(worst))} %.",
    ]
    for against in dict.fromkeys(d.against for d in detection.detections):
        found = [d for d in detection.detections if d.against == against]
        best = max(found, key=lambda d: d.auroc.value)
        stein = next(d for d in found if d.statistic == "Stein residual, centred")
        lines.append(
            f"Detection of {against} inputs: AUROC {_area(stein.auroc)} by the centred Stein "
            f"residual; the largest is that of {best.statistic}, {_area(best.auroc)}."
        )
    return lines + _skipped(shift)


def table(shift: Shift) -> Table:
    """One row a corruption."""

    def row(name: str | None) -> list[str]:
        severities = [f"{100 * shift.accuracy(name, s).value:.1f}" for s in SEVERITIES]
        return [name or "all", *severities, with_bounds(shift.accuracy(name))]

    return Table(
        ["corruption", *(f"severity {severity}" for severity in SEVERITIES), "mean"],
        [
            ["none", *["–"] * len(SEVERITIES), with_bounds(shift.clean_accuracy)],
            *map(row, (*shift.correct, None)),
        ],
        f"Accuracy in %, n = {len(shift.clean)}; in brackets 95 % intervals.",
    )


def detection_table(detection: OutOfDistribution) -> Table:
    """One row a statistic, one column a set of out-of-distribution inputs."""
    area = {(d.statistic, d.against): d for d in detection.detections}
    sets = {d.against: d.m for d in detection.detections}
    return Table(
        ["statistic", *(f"{name} (m = {m})" for name, m in sets.items())],
        [
            [statistic, *(_area(area[statistic, name].auroc) for name in sets)]
            for statistic in dict.fromkeys(statistic for statistic, _ in area)
        ],
        f"AUROC against n = {detection.detections[0].n} inputs of the data, with 95 % "
        "intervals: ½ is chance; under ½ the statistic is smaller out of distribution.",
    )


def sheet(example: Tensor, shift: Shift) -> Figure:
    """One row a corruption, one column a severity."""
    shown = [corruption for corruption in CORRUPTIONS if corruption.name in shift.correct]
    figure = Figure(figsize=(7, 1.1 * len(shown)))
    grid = figure.subplots(len(shown), len(SEVERITIES) + 1, squeeze=False)
    for row, corruption in zip(grid, shown, strict=True):
        corrupted = [corruption(example[None], s, seed=shift.seed)[0] for s in SEVERITIES]
        for axes, image in zip(row, [example, *corrupted], strict=True):
            show_image(axes, image)
        row[0].set_title(corruption.name, fontsize=8, loc="left")
    return figure


def _area(area: Interval) -> str:
    return with_bounds(area, 1, ".3f")


def _skipped(shift: Shift) -> list[str]:
    return [f"Skipped: {name}: {reason}." for name, reason in shift.skipped.items()]
