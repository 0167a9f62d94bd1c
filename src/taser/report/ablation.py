"""The report of an ablation: which changes raise or lower what, against TASER as it is."""

from collections.abc import Sequence
from pathlib import Path

from taser.studies.ablation import DEFAULT
from taser.studies.table_rows import Row

from . import method_study
from .finished import Finished
from .frontier import MARK
from .method_findings import verdict
from .method_table import MEASURES, interval, main_table, title_of


def changes(study: Finished) -> list[Row]:
    """The rows with one part changed; gains are over TASER as it is."""
    found = study.rows(baseline=DEFAULT)
    return [row for row in found if row.variant != "off" and MARK not in row.variant]


def summary(found: Sequence[Row]) -> list[str]:
    """For each method, what the changes did to robust accuracy."""
    if not found:
        return ["No run with TASER is finished yet."]
    measure = found[0].headline
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
        text = ". ".join(words[:1].upper() + words[1:] for words in said)
        lines.append(
            f"{title_of(method)}, accuracy under {MEASURES.get(measure, measure)} against TASER as "
            f"it is. {text}."
        )
    return lines


def write(study: Finished, out: Path) -> tuple[Path, list[str]]:
    """report.html, table.md, table.tex and rows.json in `out`; the page, and its summary."""
    found = changes(study)
    table = main_table(found, against="TASER as it is")
    return method_study.write(
        study, out, title="Which part of TASER does what", extra=[("One part changed", [table])],
        conclusion=summary(found), paper=False,
    )  # fmt: skip
