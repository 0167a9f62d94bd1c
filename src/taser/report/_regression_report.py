"""Report of a regression under attack."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from taser._files import write_atomically
from taser.evaluation import Interval, RegressionEvaluation

from ._page import Block, Page, Picture, Table, png


def write(
    result: RegressionEvaluation, title: str, out: Path,
    curve: Sequence[tuple[float, float]] | None = None,
) -> Path:  # fmt: skip
    """evaluation.json, table.md and report.html in `out`; the page's path. curve: (ε, MSE)."""
    write_atomically(out / "evaluation.json", result.to_json() + "\n")
    write_atomically(out / "table.md", table(result).markdown())
    sections: list[tuple[str, list[Block]]] = [("Errors", [table(result)])]
    if curve:
        figure = Figure(figsize=(6, 3.4), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*curve, strict=True), "o-")
        axes.axvline(result.threat.epsilon, color="0.5", linestyle="--")
        axes.set(xlabel="ε", ylabel="mean squared error", ylim=(0, None))
        caption = "Mean squared error as ε grows, under PGD; dashed: the ε of this evaluation."
        sections.append(("Error against ε", [Picture(png(figure), caption)]))
    if result.findings:
        sections.append(("Findings", [str(finding) for finding in result.findings]))
    footer = f"taser evaluate; n = {result.n}, seed {result.provenance.seed}."
    page = Page(f"Regression: {title}", summary(result), sections, footer)
    return page.write(out / "report.html")


def summary(result: RegressionEvaluation) -> list[str]:
    """The errors to quote, with n and their intervals."""
    clean, worst = (result.errors(values) for values in (result.clean, result.worst))
    return [
        f"On n = {result.n} examples the mean squared error is {shown(clean['MSE'])} and "
        f"{shown(worst['MSE'])} under {' and '.join(result.attacks)} at {result.threat}, per "
        f"example the worst case; R² {shown(clean['R²'])} and {shown(worst['R²'])}.",
        *([f"Changes: {result.threat.columns}."] if result.threat.columns else []),
        *(f"Finding: {finding}" for finding in result.findings),
    ]


def shown(found: Interval) -> str:
    """A figure with its 95 % interval."""
    return f"{found.value:.4g} [{found.low:.4g}, {found.high:.4g}]"


def table(result: RegressionEvaluation) -> Table:
    """Clean, each attack, the worst case."""
    rows = [
        [name, *map(shown, result.errors(values).values())]
        for name, values in result.rows().items()
    ]
    note = f"{result.threat}; n = {result.n}; in the units of the target, 95 % intervals."
    return Table(["", "MSE", "MAE", "R²"], rows, note)
