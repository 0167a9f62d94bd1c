"""An audit as a page, and as lines for the terminal."""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from taser.evaluation import Audit

from ._page import Block, Page, Picture, Table, png

ENOUGH = 100  # examples: with fewer, a tenth of them may hide behind sampling error
CURVE = (
    "Accuracy on the audited examples as ε grows, under PGD on three losses; dashed: the ε of the "
    "claim. It should fall steadily, and to zero."
)


def write(audit: Audit, title: str, out: Path) -> Path:
    """results.json, table.md and report.html in `out`; the page's path."""
    sections: list[tuple[str, list[Block]]] = [
        ("Checks", [table(audit)]),
        ("What each check means", [f"{c.name}: {c.explanation}" for c in audit.checks]),
        ("Accuracy against ε", [Picture(png(curve(audit)), CURVE)]),
    ]
    if audit.findings:
        sections.append(("Other findings", [str(finding) for finding in audit.findings]))
    footer = f"taser audit; {audit.given} examples, seed {audit.settings['seed']}."
    page = Page(f"Audit: {title}", summary(audit), sections, footer)
    return page.write_report(out, audit.numbers())


def summary(audit: Audit) -> list[str]:
    """The verdict with its reasons."""
    passed = len(audit.checks) - len(audit.failed) - len(audit.skipped)
    lines = [
        f"Verdict: {audit.verdict}. Of {len(audit.checks)} checks {passed} passed, "
        f"{len(audit.failed)} failed, {len(audit.skipped)} were skipped.",
        *(f"Failed: {check.name}: {check.figure}." for check in audit.failed),
        *(f"Skipped: {check.name}: {check.figure}." for check in audit.skipped),
    ]
    if not audit.failed:
        lines.append("No sign of gradient masking was found; that is no proof of robustness.")
    if audit.n < ENOUGH:
        lines.append(f"With fewer than {ENOUGH} right answers only gross masking would be seen.")
    robust = next(p.accuracy for p in audit.curve if p.epsilon == audit.threat.epsilon)
    lines.append(
        f"The model gets {audit.n} of {audit.given} examples right; {100 * robust:.1f} % of "
        f"those are robust to PGD at {audit.threat}."
    )
    return lines


def table(audit: Audit) -> Table:
    """One row a check."""
    return Table(
        ["check", "result", "measured"],
        [[check.name, check.status, check.figure] for check in audit.checks],
        "A comparison fails if more than 2 % of the examples (10 % for the margin) speak against "
        "the model and sampling error cannot explain it (exact binomial test, 1 %).",
    )


def curve(audit: Audit) -> Figure:
    """Accuracy over ε."""
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    radii = [point.epsilon for point in audit.curve]
    axes.plot(radii, [100 * point.accuracy for point in audit.curve], "o-")
    axes.axvline(audit.threat.epsilon, color="0.5", linestyle="--")
    axes.set_xscale("log")
    names = [str(replace(audit.threat, epsilon=radius)).split("=")[1] for radius in radii]
    axes.set_xticks(radii, names, rotation=45)
    axes.minorticks_off()
    axes.set(xlabel="ε", ylabel="accuracy (%)", ylim=(-3, 103))
    return figure
