"""The manifold study as files: numbers, tables, a picture and a page."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from taser._files import write_atomically
from taser.studies.manifold2d import METHODS, ON_CURVE, PLAIN, Result

from . import manifold2d_findings as findings
from ._page import Page, Picture, Table, png
from .manifold2d_figure import draw
from .manifold2d_findings import TITLES

ALSO = (findings.at_no_price, findings.laplacian, findings.where)


def write(result: Result, out_dir: Path | str) -> Path:
    """results.json, table.md, geometry.png and report.html in `out_dir`; the page's path."""
    out = Path(out_dir)
    image = png(draw(result))
    tables = [runs_table(result), matched_table(result)]
    numbers = json.dumps(result.numbers(), indent=2, allow_nan=False)
    write_atomically(out / "results.json", numbers + "\n")
    write_atomically(out / "table.md", "\n".join(table.markdown() for table in tables))
    write_atomically(out / "geometry.png", image)
    return page(result, image, tables).write(out / "report.html")


def page(result: Result, image: bytes, tables: Sequence[Table]) -> Page:
    """The whole story, summary first."""
    config = result.config
    setting = (
        f"{config.examples} points lie near a sine arc, off it by noise of standard deviation "
        f"σ = {config.sigma:g}. The class changes {config.segments - 1} times along the arc and "
        "never across it. Their density is a mixture of normals along the arc, so the score is "
        "exact. A small SiLU network is trained without a penalty, with E‖∇m‖² (isotropic), with "
        "TASER's variance of the Stein residual Δm + s·∇m, and with its first-order form s·∇m, "
        "where m is the margin. Data, first weights and batches are the same for all; "
        "with every seed they are new."
    )
    strength = (
        "Strength is the weight λ of the isotropic penalty. The Stein penalties get λσ², because "
        "the score grows as 1/σ: at equal strength all of them charge alike for sensitivity across "
        "the curve. Nothing below rests on one choice of λ: every method is shown over all."
    )
    limits = (
        "This is one curve in two dimensions, with a score that is known. It shows the mechanism "
        "at work, not that it carries over to images, where the score is learnt and the data may "
        "be far thinner than the noise that the score was learnt with. How long one trains moves "
        "all of these numbers: compare methods with one another, not with another page."
    )
    return Page(
        title="Sensitivity along and across a curve: TASER and an isotropic penalty",
        summary=summary(result),
        sections=[
            ("What was done", [setting, strength]),
            ("The picture", [Picture(image, caption(result))]),
            ("At equal tangential sensitivity", [tables[1]]),
            ("Also seen", [say(result) for say in ALSO]),
            ("Every run", [tables[0]]),
            ("What this cannot say", [limits]),
        ],
        footer=f"taser study manifold2d; seeds {', '.join(map(str, config.seeds))}; "
        f"{config.steps} steps of {config.batch} examples.",
    )


def summary(result: Result) -> list[str]:
    """The findings in plain language, most important first."""
    return [findings.verdict(result), findings.along(result), findings.robustness(result)]


def caption(result: Result) -> str:
    """What the picture shows, in words."""
    return (
        "Top: how strongly the margin reacts across the curve and along it, near the data, for "
        f"seed {result.config.seeds[0]}, as a share of each classifier's own rms gradient; dark is "
        "strong. White and black dots are the two classes, the green line the decision boundary. "
        "The penalties are shown at the strengths where their tangential sensitivities are most "
        "alike. Bottom: normal over tangential sensitivity against the strength of the penalty "
        "and against tangential sensitivity (a line a seed), and accuracy when points are pushed "
        "across the curve. Lines are means and bands the range over seeds; dotted lines and stars "
        "are plain training."
    )


def runs_table(result: Result) -> Table:
    """One row a method and strength: mean ± standard deviation over seeds."""
    control = (ON_CURVE, result.control()[0])
    plan = [(PLAIN, 0.0), *((m, s) for m in METHODS for s in result.config.strengths), control]
    return Table(
        ["method", "strength", "λ", "tangential", "normal", "normal / tangential",
         "clean %", "pushed across %", "pushed anywhere %"],
        [_row(result, method, strength) for method, strength in plan],
        f"Held-out points. Tangential and normal: rms of ‖Π_T ∇m‖ and ‖Π_N ∇m‖. Pushed: by up to "
        f"{result.config.eps:g}, the worst of a fine search. Mean ± standard deviation over "
        f"{len(result.config.seeds)} seed(s).",
    )  # fmt: skip


def matched_table(result: Result) -> Table:
    """What is left across the curve where both penalties leave the same along it."""
    rows = []
    for level in result.levels("tangent"):
        for method in ("isotropic", "taser"):
            points = result.matched(method, "tangent", level)
            normal = _spread([p.normal for p in points], 2)
            ratio = _spread([p.ratio for p in points], 3)
            clean = _spread([100 * p.accuracy for p in points], 1)
            rows.append([f"{level:.2f}", TITLES[method], normal, ratio, clean])
    return Table(
        ["tangential", "method", "normal", "normal / tangential", "clean %"],
        rows,
        "Read off each seed's path over strengths, by straight lines between neighbours on log "
        "scales. " + ("" if rows else "They have no tangential sensitivity in common."),
    )


def _row(result: Result, method: str, strength: float) -> list[str]:
    measured = result.over_seeds(method, strength)
    weight = result.config.weight(method, strength)
    return [
        TITLES[method],
        f"{strength:g}" if strength else "–",
        f"{weight:.2g}" if strength else "–",
        _spread([m.tangent for m in measured], 2),
        _spread([m.normal for m in measured], 2),
        _spread([m.ratio for m in measured], 3),
        _spread([100 * m.accuracy for m in measured], 1),
        _spread([100 * m.accuracy_normal for m in measured], 1),
        _spread([100 * m.accuracy_any for m in measured], 1),
    ]


def _spread(values: Sequence[float], digits: int) -> str:
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {stdev(values):.{digits}f}"
