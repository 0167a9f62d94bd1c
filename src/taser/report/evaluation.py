"""An evaluation as a page, and as lines for the terminal."""

from pathlib import Path

from torch import Tensor

from taser.evaluation import Evaluation, Interval, accuracy_interval
from taser.evaluation.curve import Curve
from taser.files import write_atomically

from .evaluation_figure import draw_curve, draw_examples
from .page import Block, Page, Picture, png
from .table import Table

EXAMPLES = (
    "Clean inputs with their labels, the inputs that broke them with the model's answers, and the "
    "differences with their size, stretched so that the largest change is black or white."
)


def write(
    evaluation: Evaluation,
    title: str,
    out: Path,
    *,
    x: Tensor | None = None,
    answers: Tensor | None = None,
    curve: Curve | None = None,
) -> Path:
    """evaluation.json, table.md and report.html in `out`; the page's path.

    x, answers: the clean inputs, (n, *), and the model's answers to the attacked ones, (n,), for
    pictures of what broke it; curve: accuracy against ε.
    """
    write_atomically(out / "evaluation.json", evaluation.to_json() + "\n")
    write_atomically(out / "table.md", table(evaluation).markdown())
    sections: list[tuple[str, list[Block]]] = [("Accuracy", [table(evaluation)])]
    if evaluation.findings:
        sections.append(("To know before believing it", [str(f) for f in evaluation.findings]))
    if x is not None and answers is not None and x.ndim == 4:
        image = draw_examples(evaluation, x, answers)
        if image is not None:
            sections.append(("What broke it", [Picture(png(image), EXAMPLES)]))
    if curve is not None:
        drawn = Picture(png(draw_curve(curve, evaluation)), _curve_caption(curve))
        sections.append(("Accuracy against ε", [drawn]))
    sections.append(("Where it comes from", [_provenance(evaluation)]))
    page = Page(
        title=f"Evaluation: {title}",
        summary=summary(evaluation),
        sections=sections,
        footer=f"taser evaluate; n = {evaluation.n}, seed {evaluation.provenance.seed}.",
    )
    return page.write(out / "report.html")


def summary(evaluation: Evaluation) -> list[str]:
    """The figures to quote, with n and how sure they are."""
    clean, robust = accuracy_interval(evaluation.clean), accuracy_interval(evaluation.standing)
    attacks = " and ".join(evaluation.attacks)
    lines = [
        f"Of n = {evaluation.n} examples the model gets {_percent(clean)} right, and "
        f"{_percent(robust)} under {attacks} at {evaluation.threat}, per example the worst case.",
    ]
    if evaluation.paper_average is not None:
        lines.append(
            f"The mean of AutoAttack and SPSA, as the paper has it, is "
            f"{100 * evaluation.paper_average:.1f} %: never less than what stands under both."
        )
    lines += [f"To know: {finding}" for finding in evaluation.findings]
    return lines


def table(evaluation: Evaluation) -> Table:
    """Clean, each attack with its stages, the worst case, the paper's average."""
    rows = [_row("clean", evaluation.clean)]
    for name, verdicts in evaluation.attacks.items():
        rows.append(_row(name, verdicts.standing, verdicts.seconds))
        if len(verdicts.stages) > 1:
            rows += [
                [f"  after {stage}", f"{100 * share:.1f}", "", "", ""]
                for stage, share in verdicts.after(evaluation.clean).items()
            ]
    rows.append(_row("worst case, per example", evaluation.standing))
    if evaluation.paper_average is not None:
        average = f"{100 * evaluation.paper_average:.1f}"
        rows.append(["mean of AutoAttack and SPSA (paper)", average, "", "", ""])
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
