"""The toy regression's pictures."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taser.studies.toy1d import Method, Result

from .toy1d_findings import headline

PENALTIES: tuple[Method, Method] = ("l2", "taser")  # one panel each
TITLES = {"l2": "ℓ2: λ‖θ‖²", "taser": "TASER: λ E[(f″ − x f′)²]"}
LIMIT = 4.0  # of the forecasts' axis


def forecast_figure(result: Result) -> Figure:
    """Forecasts of both regularisers on the headline grid, one line for each λ."""
    width, x = headline(result), np.array(result.x)
    figure, panels = _panels("forecast")
    for axes, method in zip(panels, PENALTIES, strict=True):
        hump = LIMIT * (np.exp(-np.square(x) / 2) * 0.35 - 1)
        axes.fill_between(x, -LIMIT, hump, color="0.85", lw=0, label="training density")
        for row, style in _lines(result, method):
            forecasts = np.array([fit.forecast for fit in result.of(*row)])
            low, high = forecasts.min(0), forecasts.max(0)
            axes.fill_between(x, low, high, color=style["color"], alpha=0.13, lw=0)
            axes.plot(x, np.median(forecasts, 0), **style)
        axes.plot(x, np.sin(x), color="black", lw=1.3, label="sin x", zorder=1.9)
        axes.set(xlim=(-width, width), ylim=(-LIMIT, LIMIT), xlabel="x", title=TITLES[method])
    _legend(figure, panels[0])
    return figure


def width_figure(result: Result) -> Figure:
    """The error on [−w, w] against w."""
    x = np.array(result.x)
    order = np.argsort(np.abs(x), kind="stable")
    count = np.arange(1, len(x) + 1)
    figure, panels = _panels("mean squared error on [−w, w]")
    for axes, method in zip(panels, PENALTIES, strict=True):
        zero = np.cumsum(np.square(np.sin(x))[order]) / count
        axes.plot(np.abs(x)[order], zero, color="black", ls=":", lw=1.3, label="zero forecast")
        for row, style in _lines(result, method):
            errors = np.square([np.array(f.forecast) - np.sin(x) for f in result.of(*row)])
            curve = np.median(np.cumsum(errors[:, order], 1) / count, 0)
            axes.plot(np.abs(x)[order], curve, **style)
        axes.axvline(headline(result), color="0.6", lw=0.8)
        axes.set(yscale="log", ylim=(1e-4, 20), xlabel="half width w", title=TITLES[method])
        axes.set_xlim(2, max(result.config.half_widths))
    _legend(figure, panels[0])
    return figure


def _panels(ylabel: str) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    panels[0].set_ylabel(ylabel)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _lines(result: Result, method: Method) -> list[tuple[tuple[Method, float], dict]]:
    """Each λ of a method with its line: λ = 0 grey and dashed, then dark to light."""
    weights = sorted(result.config.weights)
    colours = colormaps["viridis"](np.linspace(0.05, 0.85, len(weights)))
    lines: list[tuple[tuple[Method, float], dict]] = [
        (
            ("none", 0.0),
            {"color": "0.25", "ls": (0, (4, 3)), "lw": 1.6, "label": "λ = 0", "zorder": 3},
        )
    ]
    for weight, colour in zip(weights, colours, strict=True):
        style = {"color": tuple(colour), "lw": 1.8, "label": f"λ = {weight:g}"}
        lines.append(((method, weight), style))
    return lines


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
