"""Pictures of the runs of a table: accuracy over ε, residuals, attacked images."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import Tensor

from taser.compare._comparison_config import job_name
from taser.compare._run_results import Row, RunResult, in_order
from taser.scores import pretrained
from taser.scores._named import SHIPPED
from taser.training._build import build_data
from taser.training._log import read_log
from taser.training._result import read_data_config

from ._evaluation_report import centred
from ._method_tables import (
    Finished,
    colour,
    emphasised,
    label,
    looks,
    percent,
    title_of,
    variant_of,
)
from ._page import Block, Picture, Table, png


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


GEOMETRY = (
    "Sensitivity of the margin m on {n} test examples: its size; the share in directions that the "
    "shipped denoiser takes for noise, as a mean over examples; how many would be right at ε = "
    "{epsilon:.3g} if every logit was linear around each example, and how many are under PGD. The "
    "difference of the last two is what the network bends inside the ball."
)

CORRUPTED = (
    "Per cent right under corruptions: the mean of all with its change against the method alone "
    "and a paired 95 % interval, and each kind over its five severities: noise "
    "(Gaussian, shot, impulse, speckle), blur (Gaussian, defocus, motion), light (fog, "
    "brightness, contrast, saturation where there is colour), digital (elastic, pixelate, JPEG). "
    "n = {n}; means over seeds."
)


def corrupted_table(runs: Sequence[RunResult], rows: Sequence[Row]) -> Table | None:
    """Accuracy under corruptions and by kind, as means over seeds; rows: with their gains."""
    known = [run for run in runs if "corrupted" in run.closer]
    if not known:
        return None
    kinds = list(known[0].closer["corrupted"]["kinds"])
    judged = {(row.method, row.variant, row.finetuned): row for row in rows
              if "corrupted" in row.accuracy}  # fmt: skip
    cells = []
    for name, same in by_name(known).items():
        row = judged.get((same[0].method, same[0].variant, same[0].finetuned))
        whole = (
            [percent(row.accuracy["corrupted"].value), emphasised(row, "corrupted")]
            if row
            else ["", ""]
        )
        shares = [mean(run.closer["corrupted"]["kinds"][kind] for run in same) for kind in kinds]
        cells.append([name, *whole, *map(percent, shares), str(len(same))])
    n = len(known[0].closer["corrupted"]["right"])
    return Table(["run", "mean", "Δ", *kinds, "seeds"], cells, CORRUPTED.format(n=n))


def by_name(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """The seeds of each method and variant together."""
    groups: dict[str, list[RunResult]] = {}
    for run in in_order(runs):
        groups.setdefault(_name(run), []).append(run)
    return groups


def geometry_table(runs: Sequence[RunResult]) -> Table | None:
    """Size and direction of the sensitivity, and what they promise, as means over seeds."""
    known = [run for run in runs if "sensitivity" in run.closer]
    cells = []
    for name, same in by_name(known).items():
        seen = [run.closer["sensitivity"] for run in same]
        shares = [each["off_data"] for each in seen if each["off_data"] is not None]
        cells.append([
            name, f"{mean(each['gradient'] for each in seen):.3g}",
            f"{100 * mean(shares):.0f} %" if shares else "–",
            f"{100 * mean(each['linear'] for each in seen):.1f} %",
            f"{100 * mean(_under_pgd(run) for run in same):.1f} %", str(len(seen)),
        ])  # fmt: skip
    if not cells:
        return None
    epsilon = known[0].evaluations[0].threat.epsilon
    return Table(
        ["run", "‖∇m‖", "off the data", "right if linear", "right under PGD", "seeds"], cells,
        GEOMETRY.format(n=known[0].closer["curve"]["n"], epsilon=epsilon),
    )  # fmt: skip


def _under_pgd(run: RunResult) -> float:
    """The curve's accuracy at the ε of the table."""
    curve, epsilon = run.closer["curve"], run.evaluations[0].threat.epsilon
    nearest = min(range(len(curve["epsilons"])), key=lambda i: abs(curve["epsilons"][i] - epsilon))
    return float(curve["accuracies"][nearest])


def audit_table(runs: Sequence[RunResult]) -> Table | None:
    """The verdict on every run that was audited."""
    cells = []
    for run in runs:
        audit = run.closer.get("audit")
        if audit:
            failed = [check["name"] for check in audit["checks"] if check["status"] == "failed"]
            cells.append([_name(run), str(run.seed), audit["verdict"], ", ".join(failed) or "none",
                          str(audit["n"])])  # fmt: skip
    if not cells:
        return None
    caption = (
        "Audits of the runs with TASER: of fourteen checks, those that speak against the figures."
    )
    return Table(["run", "seed", "verdict", "checks failed", "n"], cells, caption)


def _name(run: RunResult) -> str:
    return f"{title_of(run.method, run.finetuned)} {variant_of(run.variant)}"


LAST = 0.1  # of training: the part whose batches are counted

CAPTION = (
    "Per cent right at the end of training: training examples under the method's own attack in the "
    "last tenth of the steps (TRADES's is weaker than PGD, so that its gap looks larger), and "
    "validation examples under a short PGD. A penalty can raise robust accuracy on new examples by "
    "closing the gap between the two; where there is none, it competes with the loss. Means over "
    "seeds."
)


def generalisation_table(study: Finished) -> Table | None:
    """Of the runs trained on attacked examples; None if there are none, or no logs."""
    cells = []
    for name, runs in by_name(study.runs).items():
        found = [each for each in (_at_the_end(_log(study, run)) for run in runs) if each]
        if found:
            train, held_out = (100 * mean(side) for side in zip(*found, strict=True))
            gap = f"{train - held_out:+.1f}"
            cells.append([name, f"{train:.1f}", f"{held_out:.1f}", gap, str(len(found))])
    if not cells:
        return None
    header = ["run", "attacked training examples", "validation examples", "gap", "seeds"]
    return Table(header, cells, CAPTION)


def _log(study: Finished, run: RunResult) -> list[dict[str, Any]]:
    kind = "3-tune" if run.finetuned else "2-train"
    return read_log(study.queue.folder / job_name(run.method, run.variant, run.seed, kind) / "run")


def _at_the_end(log: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """The shares that are right of attacked training and validation examples."""
    validated = [line["robust"] for line in log if line["kind"] == "validation"]
    start = (1 - LAST) * max((line["step"] for line in log), default=0)
    trained = [line["attacked"] for line in log if "attacked" in line and line["step"] > start]
    return (mean(trained), validated[-1]) if trained and validated else None


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
    data = read_data_config(config.parent)
    record = first.evaluations[0]
    broken = (record.clean & ~record.robust).nonzero()[:SHOWN, 0]
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
