"""The report of an ablation: which changes raise or lower what, against TASER as it is."""

from pathlib import Path

from taser.studies.ablation import DEFAULT
from taser.studies.queue import Queue
from taser.studies.table_rows import Row

from . import method_study
from .frontier import MARK
from .method_findings import headline, verdict
from .method_table import MEASURES, NAMES, interval, main_table
from .table import Table


def changes(queue: Queue) -> list[Row]:
    """The rows with one part changed; gains are over TASER as it is."""
    found = method_study.table_rows(queue, baseline=DEFAULT)
    return [row for row in found if row.variant != "off" and MARK not in row.variant]


def summary(queue: Queue) -> list[str]:
    """For each method, what the changes did to robust accuracy."""
    found = changes(queue)
    if not found:
        return ["No run with TASER is finished yet."]
    measure = headline(found[0])
    lines = []
    for method in dict.fromkeys(row.method for row in found):
        own = [row for row in found if row.method == method and row.gain is not None]
        said = []
        for change in ("raised", "lowered", "left"):
            names = [
                f"{row.variant} ({interval(row.gain[measure])})"
                for row in own
                if row.gain is not None and verdict(row.gain[measure]) == change
            ]
            if names:
                said.append(f"{change if change != 'left' else 'no supported change'}: "
                            + "; ".join(names))  # fmt: skip
        lines.append(
            f"{NAMES.get(method, method)}, accuracy under {MEASURES.get(measure, measure)} against "
            f"TASER as it is. {'. '.join(said).capitalize()}."
        )
    return lines


def changes_table(queue: Queue) -> Table:
    """Every change, its gain over TASER as it is."""
    table = main_table(changes(queue))
    return Table(
        table.headings, table.rows, table.caption.replace("the method alone", "TASER as it is")
    )


def write(queue: Queue, out: Path) -> Path:
    """report.html, table.md, table.tex and rows.json in `out`; the page's path."""
    return method_study.write(
        queue, out, title="Which part of TASER does what",
        extra=[("One part changed", [changes_table(queue)])], conclusion=summary(queue),
        paper=False,
    )  # fmt: skip
