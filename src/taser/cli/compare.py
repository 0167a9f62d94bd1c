"""`taser compare`: models side by side that were evaluated alike."""

from pathlib import Path
from typing import Annotated

import typer

from .common import Out, show
from .machine import with_json


@with_json
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Two or more, made by `taser evaluate`.")],
    out: Out = Path("out/compare"),
) -> None:
    """Models side by side on the same examples, with paired intervals and McNemar's test.

    Example: taser compare out/evaluate/plain out/evaluate/robust --out out/compare
    """
    from taser.evaluation import Evaluation
    from taser.report import evaluation_comparison as report

    if len(folders) < 2:
        raise ValueError("a comparison takes two or more folders of `taser evaluate`")
    found = {}
    for folder in folders:
        path = folder / "evaluation.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no evaluation in {folder}: `taser evaluate` makes one"
            )
        found[folder.name if folder.name not in found else str(folder)] = Evaluation.from_json(
            path.read_text()
        )
    typer.echo(report.comparison_table(found).markdown())
    typer.echo(report.differences_table(found).markdown())
    show(report.write(found, out), report.summary(found))
