"""The report of a comparison: page, Markdown, LaTeX and JSON."""

from collections.abc import Iterator
from pathlib import Path

import taser
from taser._files import write_atomically
from taser.compare import Results

from ._comparison_figures import (
    draw_curves,
    draw_frontier,
    draw_images,
    draw_residuals,
    panels,
    training_figure,
    validations,
)
from ._comparison_tables import (
    audit_table,
    corrupted_table,
    cost_table,
    equal_clean_table,
    generalisation_table,
    main_table,
    penalty_table,
    search_table,
    seed_table,
    sensitivity_table,
    unseen_tables,
)
from ._page import Block, Page, Picture, Table, png

FRONTIER = (
    "Each point is one λ (beside it), with 95 % intervals. A penalty is better where its curve "
    "lies above the other at the same clean accuracy."
)
TRAINING = (
    "Validation accuracy over training, first seed: solid under a short PGD, dashed clean; dots: "
    "where the evaluated weights come from (another epoch's have another clean accuracy). "
    "A solid line that falls while training goes on is robust overfitting."
)
CURVES = (
    "Accuracy as ε grows, under PGD on the margin (20 steps, 2 starts: a quick upper bound) "
    "on {n} test examples, first seed; dashed: the ε of the table. It should fall to zero."
)
RESIDUALS = (
    "The residual σ s·∇m on {n} test examples, without and with TASER: how much the margin changes "
    "along directions off the data. The penalty makes it small."
)
IMAGES = (
    "Test images; the attacked images that break the first network of the table; the difference; "
    "the score s(x), which points from an image to where images are likely."
)

Section = tuple[str, list[Block]]


def write_comparison(results: Results, out: Path | str, *, title: str | None = None) -> Path:
    """report.html, table.md, table.tex and figures.json in `out`; the page's path.

    And frontier.png, for a comparison of several λ.
    """
    out = Path(out)
    sections = [(heading, blocks) for heading, blocks in _sections(results) if blocks]
    tables = [block for _, blocks in sections for block in blocks if isinstance(block, Table)]
    if frontier := dict(sections).get("Robust against clean"):
        assert isinstance(frontier[0], Picture)
        write_atomically(out / "frontier.png", frontier[0].image)
    write_atomically(out / "table.md", "\n\n".join(table.markdown() for table in tables))
    write_atomically(out / "table.tex", "\n".join(table.latex() for table in tables))
    write_atomically(out / "figures.json", results.figures())
    done = sum("result" in record for record in results.records)
    page = Page(
        title or f"Robust training methods: {results.folder.name}",
        [f"{done} of {len(results.records)} runs are finished. {_evaluations(results)}"],
        sections, f"taser {taser.__version__}; every run is in its own folder.",
    )  # fmt: skip
    return page.write(out / "report.html")


def accuracy_tables(results: Results) -> list[Table]:
    """Accuracies, gains by seed and costs, from scratch and fine-tuned."""
    rows = results.rows()
    tables = [table(rows, finetuned=kind) for kind in sorted({row.finetuned for row in rows})
              for table in (main_table, seed_table, cost_table)]  # fmt: skip
    return [table for table in tables if table is not None]


def _sections(results: Results) -> Iterator[Section]:
    yield "Accuracy", [*accuracy_tables(results)]
    frontier = draw_frontier(results.rows())
    yield "Robust against clean", [Picture(png(frontier), FRONTIER)] if frontier else []
    yield "Against other penalties", _present(penalty_table(results), equal_clean_table(results))
    yield "Attacks that training did not use", [*unseen_tables(results)]
    if found := validations(results):
        picture = Picture(png(training_figure(found)), TRAINING)
        yield "Training", [picture, *_present(generalisation_table(results))]
    yield from _diagnostics(results)
    yield "Search", _present(search_table(results))
    yield "Findings of the evaluation", _findings(results)
    yield "Configuration and versions", _configuration(results)


def _diagnostics(results: Results) -> Iterator[Section]:
    seed = min(run.seed for run in results.runs)
    first = [run for run in results.runs if "curve" in run.diagnostics and run.seed == seed]
    if first:
        n = first[0].diagnostics["curve"]["n"]
        yield "Accuracy against ε", [Picture(png(panels(first, draw_curves)), CURVES.format(n=n))]
        pairs = [run for run in first
                 if "residuals" in run.diagnostics and run.variant in ("off", "taser")]  # fmt: skip
        if pairs:
            histograms = png(panels(pairs, draw_residuals))
            yield "Stein residuals", [Picture(histograms, RESIDUALS.format(n=n))]
    yield "Sensitivity", _present(sensitivity_table(results))
    yield "Under corruptions", _present(corrupted_table(results))
    images = draw_images(results)
    yield "Attacked images", [Picture(png(images), IMAGES)] if images else []
    yield "Audits", _present(audit_table(results))


def _present(*tables: Table | None) -> list[Block]:
    return [table for table in tables if table is not None]


def _findings(results: Results) -> list[Block]:
    found: list[Block] = [
        f"{run.method} {run.variant}, seed {run.seed}: {finding.message}"
        for run in results.runs
        for evaluation in run.evaluations
        for finding in evaluation.findings
    ]
    return found or ["The attacks reported nothing unusual."]


def _evaluations(results: Results) -> str:
    evaluations = results.runs[0].evaluations
    attacks = ", ".join(f"{name} on {e.n} examples" for e in evaluations for name in e.attacks)
    return f"Attacks: {attacks}; {evaluations[0].threat}."


def _configuration(results: Results) -> list[Block]:
    """The first run's settings and the versions that evaluated it."""
    job = results.runs[0].record["job"]
    versions = results.runs[0].evaluations[0].provenance.versions
    return [
        f"First run: recipe {job['recipe']} with {' '.join(job['overrides'])}. Every run's folder "
        "holds its whole configuration, its log and its evaluation.",
        _evaluations(results),
        "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
    ]
