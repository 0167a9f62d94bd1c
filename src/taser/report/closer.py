"""Pictures of the runs of a table: accuracy over ε, residuals, attacked images."""

from collections.abc import Callable, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import Tensor

from taser.scores import pretrained
from taser.scores.pretrained import SHIPPED
from taser.studies.results import RunResult
from taser.studies.table_config import job_name
from taser.training import read_recipe
from taser.training.assemble import build_data

from .closer_tables import audit_table, corrupted_table, geometry_table
from .evaluation_figure import centred
from .finished import Finished
from .lines import colour, label, looks
from .method_table import title_of
from .page import Block, Picture, png

SHOWN = 8
CURVES = (
    "Accuracy as ε grows, under PGD on the margin (20 steps, 2 starts: a quick bound from above) "
    "on {n} test examples, first seed; dashed: the ε of the table. It should fall to zero."
)
RESIDUALS = (
    "The residual σ s·∇m on {n} test examples, without and with TASER: what the penalty narrows is "
    "how much the margin changes along directions off the data."
)
IMAGES = (
    "Test images; what breaks the first network of the table; the difference; the score field "
    "s(x), which points from where an image is to where images are."
)


def sections(study: Finished) -> list[tuple[str, Sequence[Block]]]:
    """What there is to see of the finished runs, of the first seed."""
    runs = [run for run in study.runs if run.closer]
    first = [run for run in runs if run.seed == min(r.seed for r in runs)]
    if not first:
        return []
    n = first[0].closer["curve"]["n"]
    found: list[tuple[str, Sequence[Block]]] = [
        ("Accuracy against ε", [Picture(png(_panels(first, _curves)), CURVES.format(n=n))])
    ]
    known = [run for run in first if "residuals" in run.closer]
    pairs = [run for run in known if run.variant in ("off", "taser")]
    if pairs:
        picture = Picture(png(_panels(pairs, _histograms)), RESIDUALS.format(n=n))
        found.append(("Stein residuals", [picture]))
    pointing = geometry_table(runs)
    if pointing is not None:
        found.append(("Where sensitivity points", [pointing]))
    corrupted = corrupted_table(runs, study.rows())
    if corrupted is not None:
        found.append(("Under corruptions", [corrupted]))
    images = _images(study)
    if images is not None:
        found.append(("What is attacked", [Picture(png(images), IMAGES)]))
    audits = audit_table(runs)
    return [*found, *([("Can the figures be believed?", [audits])] if audits else [])]


def _panels(runs: Sequence[RunResult], draw: Callable[[Axes, list[RunResult]], None]) -> Figure:
    """A panel for each method, everything of it in one."""
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


def _curves(axes: Axes, runs: list[RunResult]) -> None:
    look = looks([run.variant for run in runs])
    for run in runs:
        curve = run.closer["curve"]
        accuracies = [100 * a for a in curve["accuracies"]]
        axes.plot(curve["epsilons"], accuracies, "o-", markersize=3, **look[run.variant])
    epsilon = runs[0].evaluations[0].threat.epsilon
    axes.axvline(epsilon, color="0.5", linestyle="--", linewidth=0.8)
    axes.set(xlabel="ε", ylabel="accuracy, %", ylim=(-2, 102))


def _histograms(axes: Axes, runs: list[RunResult]) -> None:
    """In the same bins, so that heights compare."""
    residuals = {run.variant: torch.tensor(run.closer["residuals"]) for run in runs}
    widest = max(float(r.abs().quantile(0.99)) for r in residuals.values())
    for variant, r in residuals.items():
        axes.hist(
            r.numpy(), bins=50, range=(-widest, widest), alpha=0.6, color=colour(variant),
            label=f"{label(variant)}: std {float(r.std()):.2g}",
        )  # fmt: skip
    axes.set(xlabel="residual", ylabel="test examples")


def _images(study: Finished) -> Figure | None:
    """What broke the first run: clean, attacked, change, score."""
    first = next(run for run in study.runs if run.closer)
    home = study.queue.folder / job_name(first.method, first.variant, first.seed)
    config = home / "run" / "config.yaml"
    # Named after how many examples were asked for, which may be more than there are.
    kept = sorted(home.glob("evaluation-*"), key=lambda path: int(path.name.split("-")[1]))
    if not (config.exists() and kept and (kept[-1] / "attacked.safetensors").exists()):
        return None  # only the records were kept
    data = read_recipe(config).data
    record = first.evaluations[0]
    broken = (record.clean & ~record.standing).nonzero()[:SHOWN, 0]
    if data.name not in SHIPPED or len(broken) == 0:
        return None
    x = build_data(data).test.rows(record.index[broken])
    return _draw_images(data.name, x, load_file(kept[-1] / "attacked.safetensors")["x"][broken])


def _draw_images(name: str, x: Tensor, attacked: Tensor) -> Figure:
    scores = pretrained(name).at(timestep=50)(x)
    grey = x.shape[1] == 1
    lines = {
        "image": x,
        "attacked": attacked,
        "change": centred(attacked - x),
        "score": centred(scores),
    }
    figure = Figure(figsize=(1.1 * len(x), 4.6), layout="constrained")
    grid = figure.subplots(len(lines), len(x), squeeze=False)
    for axes, (row, images) in zip(grid, lines.items(), strict=True):
        axes[0].set_ylabel(row)
        signed = row in ("change", "score")
        for place, image in zip(axes, images, strict=True):
            picture = image.mean(0) if grey else image.permute(1, 2, 0).clamp(0, 1)
            colours = "RdBu" if grey and signed else "gray"
            place.imshow(picture.numpy(), cmap=colours, vmin=0, vmax=1)
            place.set_xticks([])
            place.set_yticks([])
    return figure
