"""The picture of the manifold study: maps of sensitivity on the plane, and curves over λ."""

import math
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from taser.studies.manifold2d import METHODS, PLAIN, Result

from .manifold2d_findings import TITLES

# Okabe and Ito's colours, which the colour-blind can tell apart; the markers say it again.
STYLES = {
    "isotropic": ("#d55e00", "s"),
    "first-order": ("#56b4e9", "^"),
    "taser": ("#0072b2", "o"),
}
SHOWN = (PLAIN, "isotropic", "taser")
PARTS = {"normal": "across the curve", "tangent": "along the curve"}
BOUNDARY = "#00a884"
DOTS = 250


def draw(result: Result) -> Figure:
    """Two rows of maps, normal over tangential, a column a method; three panels of curves below."""
    figure = Figure(figsize=(11, 6.7), layout="constrained")
    parts = np.asarray(figure.subfigures(2, 1, height_ratios=(1, 1.15)))
    _maps(parts[0], result)
    curves: SubFigure = parts[1]
    left, middle, right = curves.subplots(1, 3)
    _ratio_over_strength(left, result)
    _ratio_over_tangent(middle, result)
    _accuracy_over_strength(right, result)
    handles = [
        Line2D([], [], color=colour, marker=marker, label=TITLES[method])
        for method, (colour, marker) in STYLES.items()
    ]
    handles.append(Line2D([], [], color="black", linestyle=":", marker="*", label=TITLES[PLAIN]))
    curves.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _maps(figure: SubFigure, result: Result) -> None:
    """Each classifier's two gradient parts, over its own rms gradient: shape, not scale."""
    panels = figure.subplots(len(PARTS), len(SHOWN), sharex=True, sharey=True)
    for row, (part, label) in zip(panels, PARTS.items(), strict=True):
        for axes, method in zip(row, SHOWN, strict=True):
            colours = _map(axes, result, method, part)
        row[0].set_ylabel(label)
    for axes, method in zip(panels[0], SHOWN, strict=True):
        strength = result.shown(method)
        axes.set_title(TITLES[method] + (f", strength {strength:g}" if strength else ""))
    figure.colorbar(colours, ax=panels, label="share of rms ‖∇m‖", pad=0.01, extend="both")


def _map(axes: Axes, result: Result, method: str, part: str) -> ScalarMappable:
    scene, portrait = result.scene, result.portraits[method]
    measured = result.over_seeds(method, result.shown(method))[0]  # the first seed is portrayed
    whole = math.hypot(measured.tangent, measured.normal)
    far = scene.distance.numpy() > 3 * result.config.sigma  # off the data the split means little
    share = np.ma.masked_where(far, getattr(portrait, part).numpy() / whole)
    across, up = scene.across.numpy(), scene.up.numpy()
    colours = axes.imshow(
        share, origin="lower", extent=(across[0], across[-1], up[0], up[-1]),
        norm=LogNorm(0.03, 3), cmap="magma_r",
    )  # fmt: skip
    axes.contour(across, up, portrait.margin.numpy(), [0.0], colors=BOUNDARY, linewidths=2)
    for label, colour in enumerate(("white", "black")):
        x = scene.x[:DOTS][scene.y[:DOTS] == label].numpy()
        axes.scatter(x[:, 0], x[:, 1], s=5, c=colour, edgecolors="black", linewidths=0.3)
    text = f"rms {getattr(measured, part):.3g}"
    axes.text(0.36, 0.95, text, transform=axes.transAxes, ha="center", va="top")
    axes.set(aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return colours


def _ratio_over_strength(axes: Axes, result: Result) -> None:
    strengths = result.config.strengths
    for method in METHODS:
        ratios = [[m.ratio for m in result.over_seeds(method, s)] for s in strengths]
        _band(axes, strengths, ratios, method)
    axes.axhline(fmean(m.ratio for m in result.over_seeds(PLAIN, 0.0)), color="black", ls=":")
    axes.set(xscale="log", xlabel="strength of the penalty")
    _ratio_axis(axes)
    axes.set_title("at equal strength")


def _ratio_over_tangent(axes: Axes, result: Result) -> None:
    for method in METHODS:
        colour, marker = STYLES[method]
        for seed in result.config.seeds:
            path = result.path(method, seed)
            x, y = [point.tangent for point in path], [point.ratio for point in path]
            axes.plot(x, y, color=colour, marker=marker, ms=4, lw=1, alpha=0.7)
    for point in result.over_seeds(PLAIN, 0.0):
        axes.plot(point.tangent, point.ratio, "*", color="black", ms=9)
    axes.set(xscale="log", xlabel="tangential sensitivity")
    _ratio_axis(axes)
    axes.set_title("at equal tangential sensitivity")


def _accuracy_over_strength(axes: Axes, result: Result) -> None:
    strengths = result.config.strengths
    for method in METHODS:
        measured = [result.over_seeds(method, s) for s in strengths]
        _band(axes, strengths, [[100 * m.accuracy_normal for m in ms] for ms in measured], method)
        clean = [100 * result.accuracy(method, s) for s in strengths]
        axes.plot(strengths, clean, color=STYLES[method][0], ls="--", lw=1)
    plain = fmean(100 * m.accuracy_normal for m in result.over_seeds(PLAIN, 0.0))
    axes.axhline(plain, color="black", ls=":")
    axes.set(xscale="log", xlabel="strength of the penalty", ylabel="accuracy, %")
    axes.set_title(f"pushed {result.config.eps:g} across (dashed: clean)")


def _ratio_axis(axes: Axes) -> None:
    axes.set(yscale="log", ylabel="normal / tangential sensitivity")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _band(axes: Axes, x: tuple[float, ...], ys: list[list[float]], method: str) -> None:
    """The mean over seeds, and the range from the least to the most."""
    colour, marker = STYLES[method]
    axes.fill_between(x, [min(y) for y in ys], [max(y) for y in ys], color=colour, alpha=0.2, lw=0)
    axes.plot(x, [fmean(y) for y in ys], color=colour, marker=marker, markersize=5)
