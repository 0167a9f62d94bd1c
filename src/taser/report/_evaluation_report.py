"""Reports of an evaluation, of several models side by side, and of an audit."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from taser import __version__
from taser._files import write_atomically
from taser.attacks import Threat
from taser.attacks._threat import shown
from taser.evaluation import Audit, Comparison, Curve, Evaluation, Interval, accuracy_interval

from ._page import Block, Page, Picture, Table, png, show_image, with_bounds

SHOWN = 6  # attacked inputs: on a screen of 420 pixels their titles can be read
EXAMPLES = (
    "First row: clean inputs and their labels. Second row: the same inputs, attacked, and what the "
    "model takes them for. Third row: the change and its size; the largest is black or white."
)
ENOUGH = 100  # audited examples: with fewer, a tenth of them may hide behind sampling error


def _expected(threat: Threat) -> str:
    """What a curve against ε should look like."""
    end = "; to zero it need not, for some columns are fixed" if threat.has_fixed else ", to zero"
    return f"The dashed line is the ε of the threat. Accuracy should fall steadily{end}."


def draw_examples(evaluation: Evaluation, x: Tensor, predictions: Tensor) -> Figure | None:
    """The first examples that were broken: clean, adversarial, difference; None if none was.

    x: (n, C, H, W), clean; predictions: (n,), of the adversarial inputs.
    """
    broken = (evaluation.clean & ~evaluation.robust).nonzero()[:SHOWN, 0]
    if evaluation.x_adv is None or len(broken) == 0:
        return None
    figure = Figure(figsize=(SHOWN, 4), layout="constrained")
    grid = figure.subplots(3, SHOWN, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for column, row in zip(grid.T, broken.tolist(), strict=False):
        clean, x_adv = x[row].cpu(), evaluation.x_adv[row]
        change = centred((x_adv - clean)[None])[0]
        column[0].set_title(str(int(evaluation.y[row])), fontsize=10)
        for axes, image in zip(column, (clean, x_adv, change), strict=True):
            show_image(axes, image)
        column[1].set_title(str(int(predictions[row])), fontsize=10)
        distance = float(evaluation.threat.distance(x_adv[None], clean[None]))
        column[2].set_title(f"{distance:.3g}", fontsize=10)
    return figure


def centred(field: Tensor) -> Tensor:
    """Signed fields as images, zero at 0.5 and each as bright as it can be shown: (B, C, H, W)."""
    size = field.abs().flatten(1).amax(1).clamp_min(1e-12).view(-1, 1, 1, 1)
    return 0.5 + field / (2 * size)


def draw_curve(curve: Curve, threat: Threat, stars: Mapping[str, float]) -> Figure:
    """Accuracy over ε, dashed the threat's; stars: accuracies of other attacks there, by name."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(curve.epsilons, [100 * a for a in curve.accuracies], "o-", label=curve.attack)
    axes.axvline(threat.epsilon, color="0.5", linestyle="--")
    for name, accuracy in stars.items():
        axes.plot([threat.epsilon], [100 * accuracy], "*", markersize=11, label=name)
    smallest = min(e for e in curve.epsilons if e > 0)
    axes.set_xscale("symlog", base=2, linthresh=smallest, linscale=0.5)
    axes.set_xticks(curve.epsilons, map(shown, curve.epsilons), rotation=45)
    axes.set(xlabel="ε", ylabel="accuracy, %", ylim=(-2, 102))
    axes.set_xlim(0.9 * curve.epsilons[0])  # nothing lies left of the first
    axes.legend(frameon=False)
    return figure


def write(
    evaluation: Evaluation, title: str, out: Path, *, x: Tensor | None = None,
    predictions: Tensor | None = None, curve: Curve | None = None,
) -> Path:  # fmt: skip
    """evaluation.json, table.md and report.html in `out`; the page's path.

    x, predictions: the clean inputs, (n, *), and the predictions of the adversarial ones, (n,), for
    pictures of adversarial examples; curve: accuracy against ε.
    """
    write_atomically(out / "evaluation.json", evaluation.to_json() + "\n")
    write_atomically(out / "table.md", table(evaluation).markdown())
    sections: list[tuple[str, list[Block]]] = []
    if x is not None and predictions is not None and x.ndim == 4:
        image = draw_examples(evaluation, x, predictions)
        if image is not None:
            sections.append(("Attacked inputs", [Picture(png(image), EXAMPLES)]))
    sections.append(("Accuracy", [table(evaluation)]))
    if curve is not None:
        stars = {name: verdicts.accuracy for name, verdicts in evaluation.attacks.items()}
        caption = (
            f"On n = {curve.n} of the examples. The stars are this evaluation's attacks. "
            f"{_expected(evaluation.threat)}"
        )
        drawn = png(draw_curve(curve, evaluation.threat, stars))
        sections.append(("Accuracy against ε", [Picture(drawn, caption)]))
    origin = evaluation.provenance
    versions = ", ".join(f"{name} {number}" for name, number in origin.versions.items())
    provenance = [
        ["weights, sha256", origin.weights], ["examples, sha256", origin.data],
        ["seed", str(origin.seed)], ["examples in a batch", str(origin.batch_size)],
        ["versions", versions], ["all settings of the attacks", "evaluation.json, provenance"],
    ]  # fmt: skip
    sections.append(("Provenance", [Table(["what", "which"], provenance)]))
    footer = f"taser evaluate; n = {evaluation.n}, seed {origin.seed}."
    page = Page(f"Evaluation: {title}", summary(evaluation), sections, footer)
    return page.write(out / "report.html")


def percent(found: Interval) -> str:
    """A share with its interval."""
    low, high = 100 * found.low, 100 * found.high
    return f"{100 * found.value:.1f} % (95 % interval {low:.1f} to {high:.1f})"


def summary(evaluation: Evaluation) -> list[str]:
    """The figures to quote, with n and their intervals."""
    clean, robust = map(percent, map(accuracy_interval, (evaluation.clean, evaluation.robust)))
    attacks = " and ".join(evaluation.attacks)
    return [
        f"Of n = {evaluation.n} examples the model gets {clean} right, and {robust} under "
        f"{attacks} at {evaluation.threat}, per example the worst case.",
        *([f"Changes: {evaluation.threat.columns}."] if evaluation.threat.columns else []),
        *(f"Finding: {finding}" for finding in evaluation.findings),
    ]


def table(evaluation: Evaluation) -> Table:
    """Clean, each attack with its stages, the worst case."""
    rows = [_row("clean", evaluation.clean)]
    for name, verdicts in evaluation.attacks.items():
        rows.append(_row(name, verdicts.correct, verdicts.seconds))
        if len(verdicts.stages) > 1:
            stages = verdicts.after(evaluation.clean).items()
            rows += [
                [f"  after {name}", f"{100 * share:.1f}", "", "", ""] for name, share in stages
            ]
    rows.append(_row("worst case, per example", evaluation.robust))
    return Table(
        ["", "accuracy %", "95 % interval", f"right of {evaluation.n}", "seconds"],
        rows,
        f"{evaluation.threat}; n = {evaluation.n}. Each attack is tried on every example that is "
        "right when clean; the stages of AutoAttack each on what the earlier ones left.",
    )


def _row(name: str, right: Tensor, seconds: float | None = None) -> list[str]:
    spent = "" if seconds is None else f"{seconds:.0f}"
    interval = with_bounds(accuracy_interval(right)).split(" ", 1)
    return [name, *interval, str(int(right.sum())), spent]


def comparison_table(compared: Comparison) -> Table:
    """One row a model: accuracy with its 95 % interval, bold where it is the best."""

    def cell(found: Interval, best: bool) -> str:
        value, bounds = with_bounds(found).split(" ", 1)
        return f"**{value}** {bounds}" if best else f"{value} {bounds}"

    return Table(
        ["model", *(f"{column}, %" for column in compared.columns)],
        [[name, *(cell(found.accuracy, found.best) for found in cells.values())]
         for name, cells in compared.rows.items()],
        f"n = {compared.n}, the same examples for all; in brackets 95 % intervals. Bold: "
        "above every other model by a paired interval that excludes zero.",
    )  # fmt: skip


def differences_table(compared: Comparison) -> Table:
    """One row a pair of models: the difference of their worst cases, paired, and McNemar's p."""
    return Table(
        ["models", "points", "95 % interval", "McNemar p"],
        [[f"{d.first} − {d.second}", *with_bounds(d.interval, form="+.1f").split(" ", 1),
          f"{d.p_value:.2g}"] for d in compared.differences],
        "Difference of robust accuracy in percentage points, worst case over the attacks that all "
        "share.",
    )  # fmt: skip


def comparison_summary(compared: Comparison) -> list[str]:
    """Which model of each pair is more robust, or that the difference is not significant."""
    lines = []
    for d in compared.differences:
        better, worse = (d.first, d.second) if d.interval.value > 0 else (d.second, d.first)
        lines.append(
            f"{better} is more robust than {worse} by {100 * abs(d.interval.value):.1f} points."
            if d.interval.excludes_zero()
            else f"The difference between {d.first} and {d.second} is not significant."
        )
    return lines


def write_comparison(compared: Comparison, threat: Threat, out: Path) -> Path:
    """results.json, table.md and report.html in `out`; the page's path."""
    page = Page(
        f"Models side by side, {threat}", comparison_summary(compared),
        [("Accuracy", [comparison_table(compared)]), ("Pairs", [differences_table(compared)])],
        "taser compare",
    )  # fmt: skip
    return page.write_report(out, asdict(compared))


def write_audit(audit: Audit, title: str, out: Path) -> Path:
    """results.json, results.sarif, table.md and report.html in `out`; the page's path."""
    caption = (
        f"Accuracy here is the share of the n = {audit.n} examples that are right without attack, "
        f"under {audit.curve.attack}: it begins at 100 %. {_expected(audit.threat)}"
    )
    sections: list[tuple[str, list[Block]]] = [
        ("Checks", [audit_table(audit)]),
        ("What each check means", [f"{c.name}: {c.explanation}" for c in audit.checks]),
        ("Accuracy against ε", [Picture(png(draw_curve(audit.curve, audit.threat, {})), caption)]),
    ]
    footer = f"taser audit; {audit.given} examples, seed {audit.settings['seed']}."
    page = Page(f"Audit: {title}", audit_summary(audit), sections, footer)
    write_atomically(out / "results.sarif", json.dumps(sarif(audit, title), indent=1) + "\n")
    return page.write_report(out, audit.numbers())


def sarif(audit: Audit, title: str) -> dict[str, Any]:
    """The audit for pipelines that read SARIF 2.1.0: one rule and one result a check."""
    kinds = {"passed": ("pass", "none"), "failed": ("fail", "error"),
             "skipped": ("notApplicable", "none")}  # fmt: skip
    place = {"logicalLocations": [{"name": title, "kind": "module"}]}
    rules = [
        {"id": c.name.replace(" ", "-"), "shortDescription": {"text": c.name},
         "fullDescription": {"text": c.explanation}}
        for c in audit.checks
    ]  # fmt: skip
    results = [
        {"ruleId": rule["id"], "kind": kinds[c.status][0], "level": kinds[c.status][1],
         "message": {"text": f"{c.name}: {c.figure}"}, "locations": [place]}
        for rule, c in zip(rules, audit.checks, strict=True)
    ]  # fmt: skip
    driver = {"name": "taser audit", "version": __version__, "rules": rules}
    figures = {key: audit.numbers()[key] for key in ("verdict", "accuracy", "clean_accuracy")}
    run = {"tool": {"driver": driver}, "results": results, "properties": figures}
    return {"version": "2.1.0", "runs": [run]}


def audit_summary(audit: Audit) -> list[str]:
    """The robust accuracy, the verdict, and the verdict's reasons."""
    passed = len(audit.checks) - len(audit.failed) - len(audit.skipped)
    bound = "At most: a check failed, so another attack may leave fewer. " if audit.failed else ""
    few = f" (with {audit.n} right answers only gross masking shows: give -n for {ENOUGH} of them)"
    lines = [
        f"Robust accuracy at {audit.threat}: {percent(audit.accuracy)} of n = {audit.given}, per "
        f"example the worst of all attacks of the audit; {100 * audit.n / audit.given:.1f} % "
        f"without attack.{' ' * bool(bound)}{bound.strip()}",
        f"Verdict: {audit.verdict}{few if audit.n < ENOUGH else ''}. Of {len(audit.checks)} checks "
        f"{passed} passed, {len(audit.failed)} failed, {len(audit.skipped)} were skipped.",
        *([f"Changes: {audit.threat.columns}."] if audit.threat.columns else []),
        *(f"Failed: {check.name}: {check.figure}." for check in audit.failed),
        *(f"Skipped: {check.name}: {check.figure}." for check in audit.skipped),
        *(f"Finding: {finding}." for finding in audit.findings),
    ]
    if not audit.failed:
        lines.append("No sign of gradient masking was found; that is no proof of robustness.")
    return lines


def audit_table(audit: Audit) -> Table:
    """One row a check."""
    return Table(
        ["check", "result", "measured"],
        [[check.name, check.status, check.figure] for check in audit.checks],
        "A comparison fails if more than 2 % of the examples (10 % for the margin) speak against "
        "the model and sampling error cannot explain it (exact binomial test, 1 %).",
    )
