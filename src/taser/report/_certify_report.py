"""Certified accuracy over the radius as a page: from below, and an attack from above."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from taser.evaluation import Certificates, Interval

from ._page import Block, Page, Picture, Table, png, with_bounds

CURVES = (
    "Lines: the share of examples that are right and certified at each ℓ2 radius, whatever the "
    "attack. Points: accuracy under an ℓ2 attack on the smoothed classifier. Its true robust "
    "accuracy lies between the two."
)
Attacked = Mapping[float, Interval]
"""Accuracy under attack at each radius."""


def write(
    certificates: Sequence[Certificates], attacked: Sequence[Attacked], radii: Sequence[float],
    title: str, out: Path,
) -> Path:  # fmt: skip
    """results.json, table.md and report.html in `out`, for one or several σ; the page's path."""
    picture = Picture(png(curves(certificates, attacked)), CURVES)
    blocks: list[Block] = [picture, table(certificates, attacked, radii)]
    first = certificates[0]
    footer = (
        f"taser certify; n = {len(first.y)} examples, {first.settings['draws']} draws, alpha = "
        f"{first.settings['alpha']:g}, seed {first.settings['seed']}. The counts of each example "
        "are in results.json, from which every radius can be recomputed."
    )
    page = Page(
        f"Certificates: {title}", summary(certificates), [("Certified accuracy", blocks)], footer
    )
    return page.write_report(out, [c.numbers() for c in certificates])


def summary(certificates: Sequence[Certificates]) -> list[str]:
    """A sentence for each σ."""
    lines = []
    for found in certificates:
        sigma, radius = found.settings["sigma"], found.settings["wanted_radius"]
        radius = radius or sigma
        share = with_bounds(found.accuracy(radius))
        lines.append(
            f"At σ = {sigma:g}, {share} % are right and certified against every change of ℓ2 norm "
            f"{radius:g}; {with_bounds(found.accuracy())} % are right without a change, and "
            f"{found.abstained} of {len(found.y)} have no certificate."
        )
    return lines


def table(
    certificates: Sequence[Certificates], attacked: Sequence[Attacked], radii: Sequence[float]
) -> Table:
    """For each σ a row with certified accuracy at each radius, and one under attack."""
    rows = []
    for found, bounds in zip(certificates, attacked, strict=True):
        name = f"σ = {found.settings['sigma']:g}"
        shares = [with_bounds(found.accuracy(radius)) for radius in (0.0, *radii)]
        rows.append([f"{name}, certified", *shares, f"{found.drawn.double().mean():.0f}"])
        if bounds:
            cells = [with_bounds(bounds[r]) if r in bounds else "–" for r in radii]
            rows.append([f"{name}, under attack", "–", *cells, "–"])
    headings = ["", "right", *(f"ℓ2 radius {radius:g}" for radius in radii), "draws"]
    return Table(headings, rows, "Per cent of the examples, with 95 % intervals.")


def curves(certificates: Sequence[Certificates], attacked: Sequence[Attacked]) -> Figure:
    """Certified accuracy over the radius, and accuracy under attack."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, (found, bounds) in enumerate(zip(certificates, attacked, strict=True)):
        colour, sigma = f"C{number}", found.settings["sigma"]
        right = found.prediction == found.y
        ends = torch.cat([torch.zeros(1), found.radius[right].double().sort().values])
        shares = [100 * float(found.certified(float(r)).double().mean()) for r in ends]
        label = f"certified, σ = {sigma:g}"
        axes.step([*ends, ends[-1]], [*shares, 0], where="pre", color=colour, label=label)
        if bounds:
            values = [100 * interval.value for interval in bounds.values()]
            axes.plot(list(bounds), values, "v", color=colour, label=f"attacked, σ = {sigma:g}")
    axes.set(xlabel="ℓ2 radius", ylabel="accuracy (%)", ylim=(0, 102))
    axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="lower left")
    return figure
