"""The report of a table of methods: page, Markdown, LaTeX and JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import taser
from taser._files import write_atomically
from taser.compare._jobs import Queue
from taser.compare._run_results import Row, RunResult
from taser.training._log import read_log

from . import _method_figures as closer
from ._method_figures import generalisation_table, training_figure
from ._method_tables import (
    Finished,
    control_summary,
    control_tables,
    detail_table,
    draw_frontier,
    main_table,
    paper_table,
    percent,
    search_section,
    seed_table,
    summary,
    title_of,
    unseen_summary,
    unseen_tables,
)
from ._page import Block, Page, Picture, Table, png

NEXT = (  # the last line of all
    "Where to look next: README.md for two lines in your own loop, docs/training.md to train and "
    "fine-tune, docs/audit.md to judge a model that you were handed."
)


def conclusion(rows: Sequence[Row], runs: Sequence[RunResult]) -> list[str]:
    """What happened, for someone who has read nothing yet."""
    found = {(row.method, row.variant): row for row in rows}
    plain, ours = found["standard", "off"], found["standard", "taser"]
    epsilon = runs[0].evaluations[0].threat.epsilon
    clean, broken = (percent(plain.accuracy[m].value) for m in ("clean", "worst"))
    kept, standing = (percent(ours.accuracy[m].value) for m in ("clean", "worst"))
    return [
        f"A network trained in the ordinary way reads {clean} % of the test digits, and {broken} % "
        f"once an attacker may move every pixel by {epsilon:g} of its range; trained with TASER it "
        f"reads {kept} % and {standing} % (n = {ours.n['worst']}).",
        _audited([run.closer["audit"]["verdict"] for run in runs if "audit" in run.closer]),
    ]


def _audited(verdicts: Sequence[str]) -> str:
    if "do not trust" in verdicts:
        return "The audit found checks that fail: do not believe these figures before reading it."
    if verdicts and all(verdict == "trust" for verdict in verdicts):
        return "The audit found nothing that says these figures come from hidden gradients."
    return "The audit could not be made for every run, so nothing says yet whether to believe them."


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
    write_atomically(out / "table.tex", "\n".join(table.latex() for table in every))
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
