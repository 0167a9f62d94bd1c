"""The report of a table of methods: page, Markdown, LaTeX and JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import taser
from taser.files import write_atomically
from taser.studies.queue import Queue
from taser.studies.results import RunResult
from taser.studies.table_rows import Row
from taser.training.log import read_log

from . import closer
from .control import control_summary, control_tables
from .finished import Finished
from .frontier import draw_frontier
from .generalisation import generalisation_table
from .latex import latex
from .method_findings import summary
from .method_search import search_section
from .method_table import detail_table, main_table, paper_table, title_of
from .page import Block, Page, Picture, png
from .seed_table import seed_table
from .table import Table
from .training_curves import training_figure
from .unseen import unseen_summary, unseen_tables

FRONTIER = (
    "Each point is one λ (beside it), with 95 % intervals. A penalty is better where its curve "
    "lies above the other at the same clean accuracy."
)
CURVES = (
    "Validation accuracy over training, first seed: solid under a short PGD, dashed clean; dots: "
    "where the evaluated weights come from (another epoch's have another clean accuracy). "
    "A solid line that falls while training goes on is robust overfitting."
)

Section = tuple[str, Sequence[Block]]


def tables(found: Sequence[Row]) -> list[Table]:
    """Accuracies, their scatter and details: from scratch and fine-tuned, what there is."""
    kinds = [kind for kind in (False, True) if any(row.finetuned == kind for row in found)]
    made = (main_table, seed_table, detail_table)
    every = [table(found, finetuned=kind) for kind in kinds for table in made]
    return [table for table in every if table is not None]


def write(
    study: Finished,
    out: Path,
    *,
    title: str,
    conclusion: Sequence[str] = (),
    closing: Sequence[str] = (),
    paper: bool = True,
) -> tuple[Path, list[str]]:
    """report.html, table.md, table.tex and rows.json in `out`; the page, and its summary.

    And frontier.png, for a study of several λ.

    conclusion, closing: lines before and after the summary;
    paper: whether to set the paper's figures beside ours.
    """
    found = study.rows()
    ours = tables(found)
    beside = [paper_table(found)] if paper else []
    against, strange = control_tables(study), unseen_tables(study)
    lines = [
        *conclusion, *summary(found), *control_summary(study), *unseen_summary(study), *closing
    ]  # fmt: skip
    frontier, logs = _frontier(found, out), _logs(study.queue)
    looked, searched = closer.sections(study), search_section(study.queue)
    gap = generalisation_table(study)
    gaps = [gap] if gap else []
    training: list[Block] = [Picture(png(training_figure(logs)), CURVES), *gaps] if logs else []
    sections: list[Section] = [
        ("Accuracy", ours),
        *([("Robust against clean", frontier)] if frontier else []),
        *([("Against other penalties", against)] if against else []),
        *([("Attacks that training did not know", strange)] if strange else []),
        *([("Training", training)] if training else []),
        *looked, *searched,
        *([("Beside the paper", beside)] if paper else []),
        ("Findings of the evaluation", _findings(study.runs)),
        ("Configuration and versions", _configuration(study)),
    ]  # fmt: skip
    page = Page(title, lines, sections, f"taser {taser.__version__}; every run in its own folder.")
    further = [b for _, blocks in (*looked, *searched) for b in blocks if isinstance(b, Table)]
    every = [*ours, *against, *strange, *gaps, *further, *beside]
    text = "\n\n".join(table.markdown() for table in every)
    write_atomically(out / "table.md", "\n".join(f"- {line}" for line in lines) + "\n\n" + text)
    write_atomically(out / "table.tex", "\n".join(latex(table) for table in every))
    entries = [asdict(row) for row in found]
    write_atomically(out / "rows.json", json.dumps(entries, indent=1) + "\n")
    return page.write(out / "report.html"), lines


def _frontier(found: Sequence[Row], out: Path) -> list[Picture]:
    """The curves over λ, kept as a file of their own, too; nothing without."""
    figure = draw_frontier(found)
    if figure is None:
        return []
    image = png(figure)
    write_atomically(out / "frontier.png", image)
    return [Picture(image, FRONTIER)]


def _logs(queue: Queue) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """By method and variant, the log of the first seed."""
    logs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name in queue.names():
        job = queue.job(name)
        lines = read_log(queue.folder / name / "run")
        if lines and "candidate" not in job:
            method = title_of(job["method"], job["finetuned"])
            taken = (queue.result(name) or {}).get("best_step")
            lines = [{**line, "taken": line.get("step") == taken} for line in lines]
            logs.setdefault(method, {}).setdefault(job["variant"], lines)
    return logs


def _findings(runs: Sequence[RunResult]) -> list[str]:
    found = [
        f"{run.method} {run.variant}, seed {run.seed}: {finding.message}"
        for run in runs
        for evaluation in run.evaluations
        for finding in evaluation.findings
    ]
    return found or ["The attacks reported nothing unusual."]


def _configuration(study: Finished) -> list[Block]:
    """What the runs were asked, in short, and by which versions they were judged."""
    jobs = map(study.queue.job, study.queue.names())
    job = next(job for job in jobs if "evaluation" in job and "recipe" in job)
    records = study.runs[0].evaluations
    attacks = ", ".join(f"{name} on {e.n} examples" for e in records for name in e.attacks)
    versions = records[0].provenance.versions
    return [
        f"First run: recipe {job['recipe']} with {' '.join(job['overrides'])}. Every run's folder "
        "holds its whole configuration, its log and its record.",
        f"Attacks: {attacks}; {records[0].threat}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
    ]
