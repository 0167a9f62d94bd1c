"""Certified accuracy over the radius as a page: from below, and an attack from above."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from taser.evaluation import Certificates, accuracy_interval

from ._page import Block, Page, Picture, Table, png, with_bounds

CURVES = (
    "What no change below the radius makes wrong lies between the two lines. Solid: right and "
    "certified, so proven for each example at level 1 − alpha. Dashed: not broken by an attack at "
    "the marked radii. More draws raise the lower line, a stronger attack lowers the upper one; "
    "where draws ended once the marked radii were decided, the lower line is low between them."
)
Attacked = Mapping[float, Tensor]
"""At each radius which examples, (n,) bool, the attack leaves right."""


def write(
    certificates: Sequence[Certificates], attacked: Sequence[Attacked], radii: Sequence[float],
    title: str, out: Path, against: Sequence[Certificates] = (),
) -> Path:  # fmt: skip
    """results.json, table.md and report.html in `out`, for one or several σ; the page's path."""
    picture = Picture(png(curves(certificates, attacked, radii)), CURVES)
    blocks: list[Block] = [picture, table(certificates, attacked, radii)]
    settings = certificates[0].settings
    footer = (
        f"taser certify; n = {len(certificates[0].y)} examples, at most {settings['draws']} draws, "
        f"alpha = {settings['alpha']:g}, seed {settings['seed']}. The counts of each example are "
        "in results.json, from which every radius can be recomputed."
    )
    said = summary(certificates, radii, against)
    page = Page(f"Certificates: {title}", said, [("Certified accuracy", blocks)], footer)
    attacks = [{f"{r:g}": right.tolist() for r, right in bounds.items()} for bounds in attacked]
    both = zip(certificates, attacks, strict=True)
    return page.write_report(out, [{**c.numbers(), "attacked": found} for c, found in both])


def summary(
    certificates: Sequence[Certificates], radii: Sequence[float],
    against: Sequence[Certificates] = (),
) -> list[str]:  # fmt: skip
    """A sentence for each σ, and one for each that is compared with another."""
    lines = [
        "All this is of the vote over noise, the smoothed classifier, not of the network itself."
    ]
    for found in certificates:
        sigma = found.settings["sigma"]
        lines.append(
            f"At σ = {sigma:g}, {with_bounds(found.accuracy(radii[0]))} % are right and certified "
            f"against every change of ℓ2 norm below {radii[0]:g}; {with_bounds(found.accuracy())} "
            f"% are right without a change, and {found.abstained} of {len(found.y)} have no "
            f"certificate ({found.drawn.double().mean():.0f} draws on average)."
        )
    for found, other in zip(certificates, against, strict=False):
        gains = [(radius, *found.difference(other, radius)) for radius in (0.0, *radii)]
        each = [f"{with_bounds(gain, form='+.1f')} at {r:g} (p = {p:.2g})" for r, gain, p in gains]
        sigmas = f"{found.settings['sigma']:g} against {other.settings['sigma']:g}"
        lines.append(f"σ = {sigmas}, difference in points by radius: {', '.join(each)}.")
    return lines


def table(
    certificates: Sequence[Certificates], attacked: Sequence[Attacked], radii: Sequence[float]
) -> Table:
    """For each σ a row with certified accuracy at each radius, and one under attack."""
    rows, columns = [], (0.0, *radii)
    for found, bounds in zip(certificates, attacked, strict=True):
        name = f"σ = {found.settings['sigma']:g}"
        rows.append([f"{name}, certified", *(with_bounds(found.accuracy(r)) for r in columns)])
        if bounds:
            shares = [with_bounds(accuracy_interval(bounds[r])) for r in columns]
            rows.append([f"{name}, under attack", *shares])
    headings = ["", "right", *(f"radius {radius:g}" for radius in radii)]
    return Table(headings, rows, "Per cent of the examples, with 95 % intervals.")


def curves(
    certificates: Sequence[Certificates], attacked: Sequence[Attacked], radii: Sequence[float]
) -> Figure:
    """Certified accuracy over the radius, and accuracy under attack."""
    figure = Figure(figsize=(5, 1.2 + 2.4 * len(certificates)), layout="constrained")
    panels = figure.subplots(len(certificates), 1, squeeze=False, sharex=True)[:, 0]
    for axes, found, bounds in zip(panels, certificates, attacked, strict=True):
        end = max(*radii, float(found.radius.max()) if not bounds else 0.0)
        grid = torch.linspace(0, end, 500)
        low = [100 * float(found.certified(float(r)).double().mean()) for r in grid]
        axes.plot(grid, low, color="C0", label="certified")
        if bounds:
            marked = [100 * float(right.double().mean()) for right in bounds.values()]
            at = torch.tensor(list(bounds))
            high = torch.tensor(marked)[(at[:, None] <= grid).sum(0) - 1]
            axes.plot(grid, high, "--", color="C1")
            axes.plot(at, marked, "v", color="C1", label="under attack")
            axes.fill_between(grid, low, high, color="0.9", linewidth=0)
        title = f"σ = {found.settings['sigma']:g}"
        axes.set(title=title, ylabel="right (%)", xlim=(0, None), ylim=(0, 104))
        axes.legend(frameon=False, loc="lower left")
    panels[-1].set_xlabel("ℓ2 radius")
    return figure
