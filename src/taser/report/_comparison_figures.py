"""Figures of a comparison: accuracy over ε, λ and training, residuals, attacked images."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from safetensors.torch import load_file

from taser.compare import Results, Row, RunResult
from taser.scores import pretrained
from taser.scores._adapters import SHIPPED
from taser.training._build import build_data
from taser.training._run_folder import read_data_config

from ._comparison_tables import MARK, compared_by, label_of, title_of, variant_of, weight_of
from ._evaluation_report import centred

COLOURS = {"off": "#6b7280", "taser": "#2563eb", "gradient": "#d97706", "other": "#059669"}
KINDS = {"off": "method alone", "taser": "TASER", "gradient": "‖∇m‖²", "other": "others"}
MOST_NAMED = 6  # variants in a legend; of more only the kinds are named


def kind(variant: str) -> str:
    """The kind of a variant: "taser λ=0.1" and "TASER as it is" are both "taser"."""
    first = variant.split()[0].lower()
    return first if first in COLOURS else "other"


def label(variant: str) -> str:
    """A variant's name in a legend."""
    return "method alone" if variant == "off" else variant_of(variant)


def line_styles(variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Matplotlib's keywords for the line of each variant.

    >>> line_styles(["off", "taser"])["taser"]
    {'color': '#2563eb', 'label': '+ TASER'}
    """
    if len(variants) <= MOST_NAMED:
        return {name: {"color": COLOURS[kind(name)], "label": label(name)} for name in variants}
    found: dict[str, dict[str, Any]] = {}
    named: set[str] = set()
    for name in variants:
        own = kind(name)
        thin = {"lw": 0.8, "alpha": 0.5, "zorder": 1} if own == "other" else {}
        text = "_" if own in named else KINDS[own]
        found[name] = {"color": COLOURS[own], "label": text, **thin}
        named.add(own)
    return found


def families(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The curves among the rows of one method, each in the order of λ."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if MARK in row.variant:
            found.setdefault(row.variant.split(MARK)[0], []).append(row)
    return {name: sorted(curve, key=lambda row: float(weight_of(row)))
            for name, curve in found.items()}  # fmt: skip


def draw_frontier(rows: Sequence[Row]) -> Figure | None:
    """Robust against clean accuracy: a panel for each method and measure, a curve over λ for each
    penalty, with 95 % intervals. None without λ.
    """
    rows = [row for row in rows if not row.finetuned]
    methods = list(dict.fromkeys(row.method for row in rows if MARK in row.variant))
    if not methods:
        return None
    measures = compared_by(list(rows[0].accuracy))
    size = (4.6 * len(measures), 3.6 * len(methods))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(methods), len(measures), squeeze=False)
    for line, method in zip(grid, methods, strict=True):
        own = [row for row in rows if row.method == method]
        for axes, measure in zip(line, measures, strict=True):
            for name, curve in families(own).items():
                _plot_frontier(axes, curve, measure, name, "o-")
            _plot_frontier(axes, [r for r in own if r.variant == "off"], measure, "off", "*")
            under = "corruptions" if measure == "corrupted" else label_of(measure)
            axes.set(title=title_of(method), xlabel="clean accuracy, %",
                     ylabel=f"accuracy under {under}, %")  # fmt: skip
    named = figure.axes[0].get_legend_handles_labels()  # above all: inside it would hide points
    figure.legend(*named, loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    return figure


def _plot_frontier(
    axes: Axes, curve: Sequence[Row], measure: str, name: str, style: str
) -> None:  # fmt: skip
    sides = [[row.accuracy[m] for row in curve] for m in ("clean", measure)]
    x, y = ([100 * i.value for i in side] for side in sides)
    xerr, yerr = (
        [[100 * (i.value - i.low) for i in side], [100 * (i.high - i.value) for i in side]]
        for side in sides
    )
    colour = COLOURS[kind(name)]
    axes.errorbar(x, y, xerr=xerr, yerr=yerr, fmt=style, label=label(name), color=colour,
                  ecolor=f"{colour}66", elinewidth=0.8, markersize=5)  # fmt: skip
    for row, *place in zip(curve, x, y, strict=True):
        if MARK in row.variant:
            axes.annotate(weight_of(row), (place[0], place[1]), fontsize=7, xytext=(4, 3),
                          textcoords="offset points")  # fmt: skip


Validated = dict[str, tuple[Sequence[dict[str, Any]], int | None]]
"""By variant: {"epoch", "step", "clean", "robust"} of each validation, and the best step."""


def validations(results: Results) -> dict[str, Validated]:
    """By method and variant, those of the first seed, in runs that are not finished as well."""
    found: dict[str, Validated] = {}
    for record in results.records:
        job = record["job"]
        if record.get("validation") and "candidate" not in job:
            own = found.setdefault(title_of(job["method"], job["finetuned"]), {})
            best_step = record.get("result", {}).get("best_step")
            own.setdefault(job["variant"], (record["validation"], best_step))
    return found


def training_figure(found: Mapping[str, Validated]) -> Figure:
    """Validation accuracy over training, a panel for each method.

    Solid: under a short PGD; dashed: clean; a dot: where the evaluated weights come from.
    """
    columns = min(3, len(found))
    lines = -(-len(found) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.7 * lines), layout="constrained")
    for place, (method, variants) in enumerate(found.items(), 1):
        axes = figure.add_subplot(lines, columns, place)
        styles = line_styles(list(variants))
        for variant, (seen, best_step) in variants.items():
            epochs = [line["epoch"] for line in seen]
            dots = [number for number, line in enumerate(seen) if line["step"] == best_step]
            dashed = {"ls": "--", "lw": 1, "label": "_"}
            for measure, other in (("robust", {}), ("clean", dashed)):
                values = [100 * line[measure] for line in seen]
                style = {**styles[variant], **other}
                axes.plot(epochs, values, marker="o", ms=4, markevery=dots, **style)
        axes.set_title(method, fontsize=10)
        axes.set(ylim=(0, 102), xlabel="epoch")
        if place == 1:
            axes.set_ylabel("validation accuracy, %")
            named = axes.get_legend_handles_labels()  # above all: inside it would hide dots
            figure.legend(*named, loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return figure


def panels(runs: Sequence[RunResult], draw: Callable[[Axes, list[RunResult]], None]) -> Figure:
    """A panel for each method."""
    methods = list(dict.fromkeys((run.method, run.finetuned) for run in runs))
    columns = min(2, len(methods))
    lines = -(-len(methods) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.0 * lines), layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, (method, finetuned) in zip(grid, methods, strict=False):
        draw(axes, [run for run in runs if (run.method, run.finetuned) == (method, finetuned)])
        axes.set_title(title_of(method, finetuned))
        axes.legend(frameon=False, fontsize=8)
    for axes in grid[len(methods) :]:
        axes.axis("off")
    return figure


def draw_curves(axes: Axes, runs: list[RunResult]) -> None:
    """Accuracy over ε."""
    styles = line_styles([run.variant for run in runs])
    for run in runs:
        curve = run.diagnostics["curve"]
        accuracies = [100 * a for a in curve["accuracies"]]
        axes.plot(curve["epsilons"], accuracies, "o-", markersize=3, **styles[run.variant])
    axes.axvline(runs[0].threat.epsilon, color="0.5", linestyle="--", linewidth=0.8)
    axes.set(xlabel="ε", ylabel="accuracy, %", ylim=(-2, 102))


def draw_residuals(axes: Axes, runs: list[RunResult]) -> None:
    """Histograms in the same bins, so that heights compare."""
    residuals = {run.variant: torch.tensor(run.diagnostics["residuals"]) for run in runs}
    widest = max(float(r.abs().quantile(0.99)) for r in residuals.values())
    for variant, r in residuals.items():
        axes.hist(
            r.numpy(), bins=50, range=(-widest, widest), alpha=0.6, color=COLOURS[kind(variant)],
            label=f"{label(variant)}: std {float(r.std()):.2g}",
        )  # fmt: skip
    axes.set(xlabel="residual", ylabel="test examples")


SHOWN = 8  # images


def draw_images(results: Results) -> Figure | None:
    """Images that broke the first run: clean, attacked, difference, score; None without them.

    Records have no images, and only data with a shipped score are drawn.
    """
    first = results.runs[0]
    home = results.folder / "runs" / first.record["run"]
    # The largest evaluation. Folders are named after the wanted number of examples.
    kept = sorted(home.glob("evaluation-*"), key=lambda path: int(path.name.split("-")[1]))
    if not (kept and (kept[-1] / "attacked.safetensors").exists()):
        return None
    data, evaluation = read_data_config(home / "run"), first.evaluations[0]
    broken = (evaluation.clean & ~evaluation.robust).nonzero()[:SHOWN, 0]
    if data.name not in SHIPPED or len(broken) == 0:
        return None
    x = build_data(data).test.rows(evaluation.index[broken])
    attacked = load_file(kept[-1] / "attacked.safetensors")["x"][broken]
    lines = {"image": x, "attacked": attacked, "change": centred(attacked - x),
             "score": centred(pretrained(data.name).at(timestep=50)(x))}  # fmt: skip
    grey = x.shape[1] == 1
    figure = Figure(figsize=(1.1 * len(x), 4.6), layout="constrained")
    grid = figure.subplots(len(lines), len(x), squeeze=False)
    for axes, (name, images) in zip(grid, lines.items(), strict=True):
        axes[0].set_ylabel(name)
        colours = "RdBu" if grey and name in ("change", "score") else "gray"
        for place, image in zip(axes, images, strict=True):
            picture = image.mean(0) if grey else image.permute(1, 2, 0).clamp(0, 1)
            place.imshow(picture.numpy(), cmap=colours, vmin=0, vmax=1)
            place.set(xticks=[], yticks=[])
    return figure
