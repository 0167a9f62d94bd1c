"""The report of a table of methods: page, Markdown, LaTeX and JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import taser
from taser.files import write_atomically
from taser.studies.queue import Queue
from taser.studies.table import results
from taser.studies.table_rows import Row, rows
from taser.training.log import read_log

from . import closer
from .frontier import draw_frontier
from .method_findings import summary
from .method_search import search_section
from .method_table import NAMES, detail_table, latex, main_table, paper_table
from .page import Block, Page, Picture, png
from .table import Table
from .training_curves import training_figure

FRONTIER = (
    "Each point is one λ (beside it), with 95 % intervals. A penalty is better where its curve "
    "lies above the other at the same clean accuracy."
)


def table_rows(queue: Queue, *, baseline: str = "off") -> list[Row]:
    """The rows of all runs that are finished."""
    runs = results(queue)
    if not runs:
        raise ValueError(f"no run in {queue.folder} is finished yet")
    attacks = runs[0].attacks
    measures = ["clean", *attacks, *(["worst"] if len(attacks) > 1 else [])]
    return rows(runs, measures, baseline=baseline)


def tables(found: Sequence[Row]) -> list[Table]:
    """Accuracies and details for runs from scratch and for fine-tuning, where there are any."""
    kinds = [kind for kind in (False, True) if any(row.finetuned == kind for row in found)]
    return [table(found, finetuned=kind) for kind in kinds for table in (main_table, detail_table)]


def write(
    queue: Queue,
    out: Path,
    *,
    title: str,
    extra: Sequence[tuple[str, Sequence[Block]]] = (),
    conclusion: Sequence[str] = (),
    closing: Sequence[str] = (),
    paper: bool = True,
) -> Path:
    """report.html, table.md, table.tex and rows.json in `out`; the page's path.

    extra: further sections; conclusion, closing: lines before and after the summary;
    paper: whether to set the paper's figures beside ours.
    """
    found = table_rows(queue)
    ours = tables(found)
    beside = [paper_table(found)] if paper else []
    lines = [*conclusion, *summary(found), *closing]
    frontier = draw_frontier(found)
    sections: list[tuple[str, Sequence[Block]]] = [
        ("Accuracy", ours),
        *([("Robust against clean", [Picture(png(frontier), FRONTIER)])] if frontier else []),
        ("Training", [_curves(queue)]), *extra, *closer.sections(queue), *search_section(queue),
        *([("Beside the paper", beside)] if paper else []),
        ("Findings of the evaluation", _findings(queue)),
        ("Configuration and versions", _configuration(queue)),
    ]  # fmt: skip
    page = Page(title, lines, sections, f"taser {taser.__version__}; every run in its own folder.")
    further = [block for _, blocks in extra for block in blocks if isinstance(block, Table)]
    text = "\n\n".join(table.markdown() for table in [*ours, *further, *beside])
    write_atomically(out / "table.md", "\n".join(f"- {line}" for line in lines) + "\n\n" + text)
    write_atomically(out / "table.tex", "\n".join(latex(table) for table in [*ours, *beside]))
    entries = [asdict(row) for row in found]
    write_atomically(out / "rows.json", json.dumps(entries, indent=1) + "\n")
    return page.write(out / "report.html")


def _curves(queue: Queue) -> Picture:
    logs: dict[str, dict[str, list]] = {}
    for name in queue.names():
        job = _job(queue, name)
        lines = read_log(queue.folder / name / "run")
        if lines and "candidate" not in job:
            kind = " (fine-tuned)" if job.get("finetuned") else ""
            method = NAMES.get(job["method"], job["method"]) + kind
            logs.setdefault(method, {}).setdefault(job["variant"], lines)
    caption = (
        "Validation accuracy over training, first seed: solid under a short PGD, dashed clean. "
        "A solid line that falls while training goes on is robust overfitting."
    )
    return Picture(png(training_figure(logs)), caption)


def _findings(queue: Queue) -> list[str]:
    found = [
        f"{run.method} {run.variant}, seed {run.seed}: {finding.message}"
        for run in results(queue)
        for evaluation in run.evaluations
        for finding in evaluation.findings
    ]
    return found or ["The attacks reported nothing unusual."]


def _configuration(queue: Queue) -> list[Block]:
    """What the runs were asked, in short, and by which versions they were judged."""
    runs = results(queue)
    job = next(j for name in queue.names() if "evaluation" in (j := _job(queue, name)))
    judged = job["evaluation"]
    versions = runs[0].evaluations[0].provenance.versions
    return [
        f"First run: recipe {job['recipe']} with {' '.join(job['overrides'])}. Every run's folder "
        "holds its whole configuration, its log and its record.",
        f"Attacks: {', '.join(f'{a} on {n} examples' for a, n in judged['attacks'].items())}, "
        f"{judged['norm']}, ε = {judged['epsilon']:.4g}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
    ]


def _job(queue: Queue, name: str) -> dict[str, Any]:
    return json.loads((queue.folder / name / "job.json").read_text())
