"""Reports of one evaluation, and of several models side by side."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from taser._files import write_atomically
from taser.evaluation import Evaluation, Interval, accuracy_interval, compare
from taser.evaluation._evaluate import Curve
from taser.evaluation._statistics import differences

from ._page import Block, Page, Picture, Table, png

SHOWN = 8


def draw_examples(evaluation: Evaluation, x: Tensor, predictions: Tensor) -> Figure | None:
    """The first examples that were broken: clean, attacked, difference; None if none was.

    x: (n, C, H, W), clean; predictions: (n,), of the attacked inputs.
    """
    broken = (evaluation.clean & ~evaluation.robust).nonzero()[:SHOWN, 0]
    if evaluation.attacked is None or len(broken) == 0:
        return None
    figure = Figure(figsize=(1.2 * SHOWN, 4.2), layout="constrained")
    grid = figure.subplots(3, SHOWN, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for column, row in zip(grid.T, broken.tolist(), strict=False):
        clean, attacked = x[row].cpu(), evaluation.attacked[row]
        change = centred((attacked - clean)[None])[0]
        column[0].set_title(str(int(evaluation.y[row])), fontsize=10)
        for axes, image in zip(column, (clean, attacked, change), strict=True):
            _show(axes, image)
        column[1].set_title(str(int(predictions[row])), fontsize=10)
        distance = float(evaluation.threat.distance(attacked[None], clean[None]))
        column[2].set_title(f"{distance:.3g}", fontsize=10)
    return figure


def centred(field: Tensor) -> Tensor:
    """Signed fields as images, zero at 0.5 and each as bright as it can be shown: (B, C, H, W)."""
    size = field.abs().flatten(1).amax(1).clamp_min(1e-12).view(-1, 1, 1, 1)
    return 0.5 + field / (2 * size)


def _show(axes: Axes, image: Tensor) -> None:
    channels = image.clamp(0, 1).permute(1, 2, 0)
    gray = channels.shape[2] not in (3, 4)
    axes.imshow((channels.mean(2) if gray else channels).numpy(), cmap="gray", vmin=0, vmax=1)


def draw_curve(curve: Curve, evaluation: Evaluation) -> Figure:
    """Accuracy over ε, with the figures of the evaluation at its own ε."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.plot(curve.epsilons, [100 * a for a in curve.accuracies], "o-", label=curve.attack)
    at = evaluation.threat.epsilon
    axes.axvline(at, color="0.5", linestyle="--")
    for name, verdicts in evaluation.attacks.items():
        axes.plot([at], [100 * verdicts.accuracy], "*", markersize=11, label=name)
    axes.set(xlabel="ε", ylabel="accuracy, %", ylim=(-2, 102))
    axes.legend(frameon=False)
    return figure


EXAMPLES = (
    "Clean inputs with their labels, adversarial inputs with their predictions, and the "
    "differences with their size, scaled so that the largest change is black or white."
)


def write(
    evaluation: Evaluation,
    title: str,
    out: Path,
    *,
    x: Tensor | None = None,
    predictions: Tensor | None = None,
    curve: Curve | None = None,
) -> Path:
    """evaluation.json, table.md and report.html in `out`; the page's path.

    x, predictions: the clean inputs, (n, *), and the predictions of the attacked ones, (n,), for
    pictures of adversarial examples; curve: accuracy against ε.
    """
    write_atomically(out / "evaluation.json", evaluation.to_json() + "\n")
    write_atomically(out / "table.md", table(evaluation).markdown())
    sections: list[tuple[str, list[Block]]] = [("Accuracy", [table(evaluation)])]
    if evaluation.findings:
        sections.append(("Findings", [str(f) for f in evaluation.findings]))
    if x is not None and predictions is not None and x.ndim == 4:
        image = draw_examples(evaluation, x, predictions)
        if image is not None:
            sections.append(("Adversarial examples", [Picture(png(image), EXAMPLES)]))
    if curve is not None:
        drawn = Picture(png(draw_curve(curve, evaluation)), _curve_caption(curve))
        sections.append(("Accuracy against ε", [drawn]))
    sections.append(("Provenance", [_provenance(evaluation)]))
    page = Page(
        title=f"Evaluation: {title}",
        summary=summary(evaluation),
        sections=sections,
        footer=f"taser evaluate; n = {evaluation.n}, seed {evaluation.provenance.seed}.",
    )
    return page.write(out / "report.html")


def summary(evaluation: Evaluation) -> list[str]:
    """The figures to quote, with n and their intervals."""
    clean, robust = accuracy_interval(evaluation.clean), accuracy_interval(evaluation.robust)
    attacks = " and ".join(evaluation.attacks)
    lines = [
        f"Of n = {evaluation.n} examples the model gets {_percent(clean)} right, and "
        f"{_percent(robust)} under {attacks} at {evaluation.threat}, per example the worst case.",
    ]
    lines += [f"Finding: {finding}" for finding in evaluation.findings]
    return lines


def table(evaluation: Evaluation) -> Table:
    """Clean, each attack with its stages, the worst case."""
    rows = [_row("clean", evaluation.clean)]
    for name, verdicts in evaluation.attacks.items():
        rows.append(_row(name, verdicts.correct, verdicts.seconds))
        if len(verdicts.stages) > 1:
            rows += [
                [f"  after {stage}", f"{100 * share:.1f}", "", "", ""]
                for stage, share in verdicts.after(evaluation.clean).items()
            ]
    rows.append(_row("worst case, per example", evaluation.robust))
    return Table(
        ["", "accuracy %", "95 % interval", f"right of {evaluation.n}", "seconds"],
        rows,
        f"{evaluation.threat}; n = {evaluation.n}. Each attack is tried on every example that is "
        "right when clean; the stages of AutoAttack each on what the earlier ones left.",
    )


def _row(name: str, right: Tensor, seconds: float | None = None) -> list[str]:
    interval = accuracy_interval(right)
    bounds = f"{100 * interval.low:.1f}–{100 * interval.high:.1f}"
    spent = "" if seconds is None else f"{seconds:.0f}"
    return [name, f"{100 * interval.value:.1f}", bounds, str(int(right.sum())), spent]


def _percent(interval: Interval) -> str:
    return (
        f"{100 * interval.value:.1f} % (95 % interval {100 * interval.low:.1f} to "
        f"{100 * interval.high:.1f})"
    )


def _curve_caption(curve: Curve) -> str:
    return (
        f"Accuracy on n = {curve.n} examples as ε grows, under {curve.attack}; dashed: the ε of "
        "this evaluation; stars: its attacks. It should fall steadily, and to zero."
    )


def _provenance(evaluation: Evaluation) -> Table:
    origin = evaluation.provenance
    rows = [
        ["weights, sha256", origin.weights],
        ["examples, sha256", origin.data],
        ["seed; batch", f"{origin.seed}; {origin.batch_size}"],
        *([f"attack {name}", text] for name, text in origin.attacks.items()),
        ["versions", ", ".join(f"{name} {number}" for name, number in origin.versions.items())],
    ]
    return Table(["what", "which"], rows)


def comparison_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """One row a model: accuracy with its 95 % interval, bold where it is the best."""
    compared = compare(evaluations)
    rows = [
        [name, *(_cell(cell.accuracy, cell.best) for cell in cells.values())]
        for name, cells in compared.rows.items()
    ]
    return Table(
        ["model", *(f"{column}, %" for column in compared.columns)],
        rows,
        f"n = {compared.n}, the same examples for all; in brackets 95 % bootstrap intervals. Bold: "
        "above every other model by a paired bootstrap whose interval excludes zero.",
    )


def differences_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """One row a pair of models: the difference of their worst cases, paired, and McNemar's p."""
    rows = []
    for (first, second), found in differences(evaluations).items():
        bounds = f"{100 * found.interval.low:+.1f} to {100 * found.interval.high:+.1f}"
        value = f"{100 * found.interval.value:+.1f}"
        rows.append([f"{first} − {second}", value, bounds, f"{found.p_value:.2g}"])
    return Table(
        ["models", "points", "95 % interval", "McNemar p"],
        rows,
        "Difference of robust accuracy in percentage points, worst case over the "
        "attacks that all share.",
    )


def comparison_summary(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Which model of each pair is more robust, or that the difference is not significant."""
    lines = []
    for (first, second), found in differences(evaluations).items():
        better, worse = (first, second) if found.interval.value > 0 else (second, first)
        lines.append(
            f"{better} is more robust than {worse} by {100 * abs(found.interval.value):.1f} points."
            if found.interval.excludes_zero()
            else f"The difference between {first} and {second} is not significant."
        )
    return lines


def write_comparison(evaluations: Mapping[str, Evaluation], out: Path) -> Path:
    """results.json, table.md and report.html in `out`; the page's path."""
    both = [comparison_table(evaluations), differences_table(evaluations)]
    numbers = {
        "rows": {
            name: {column: asdict(cell) for column, cell in row.items()}
            for name, row in compare(evaluations).rows.items()
        },
        "differences": [
            {"first": first, "second": second, **asdict(found)}
            for (first, second), found in differences(evaluations).items()
        ],
    }
    threat = next(iter(evaluations.values())).threat
    page = Page(
        f"Models side by side, {threat}", comparison_summary(evaluations),
        [("Accuracy", both[:1]), ("Pairs", both[1:])], "taser compare",
    )  # fmt: skip
    return page.write_report(out, numbers)


def _cell(interval: Interval, best: bool) -> str:
    value = f"{100 * interval.value:.1f}"
    bounds = f"({100 * interval.low:.1f}–{100 * interval.high:.1f})"
    return f"**{value}** {bounds}" if best else f"{value} {bounds}"
