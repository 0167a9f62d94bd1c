"""The command line: `taser --help`."""

from pathlib import Path
from typing import Annotated

import typer

from . import _study_commands as study
from ._data_commands import app as data_app
from ._doctor import doctor
from ._evaluate_commands import audit, compare, evaluate, shift
from ._options import Jobs, Out, PlainErrors, show, with_json
from ._score_commands import app as score_app
from ._study_commands import app as study_app
from ._train_commands import finetune, recipes, train

app = typer.Typer(
    help="Robust training that follows the geometry of the data.",
    cls=PlainErrors,
    no_args_is_help=True,
    epilog="Exit codes: 0 fine; 1 an error, such as bad input; 2 wrong usage; 3 a verdict against "
    "the model (audit: do not trust; evaluate: less than --at-least); 130 stopped by Ctrl-C.",
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(score_app, name="score")
app.add_typer(study_app, name="study")
for command in (train, finetune, recipes, evaluate, audit, shift, compare, doctor):
    app.command()(command)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")] = False,  # noqa: ARG001 — PlainErrors reads it
) -> None:
    """Robust training that follows the geometry of the data."""
    if version:
        import taser

        typer.echo(f"taser {taser.__version__}")
        raise typer.Exit


@app.command()
@with_json
def demo(out: Out = Path("out/demo"), jobs: Jobs = 2) -> None:
    """Train digits without and with TASER, attack, audit, and report: minutes, no download.

    Example: taser demo --out out/demo
    """
    from taser.compare._comparison_config import read_table_config
    from taser.report import _comparison_report as report
    from taser.report._method_tables import Finished

    queue = study.run_queue(read_table_config("studies/demo"), out, jobs, threads=1)
    found = Finished.of(queue)
    rows = found.rows()
    lines = report.conclusion(rows, found.runs)
    page, _ = report.write(
        found, out, title="TASER on handwritten digits", conclusion=lines, closing=[report.NEXT],
        paper=False,
    )  # fmt: skip
    typer.echo(report.tables(rows)[0].markdown())
    show(page, [*lines, report.NEXT], "rows.json")


@app.command()
@with_json
def report(
    folder: Annotated[Path, typer.Argument(help="Of `taser study table`, finished or not.")],
) -> None:
    """Make the report of a study anew, from the runs that are finished by now.

    Example: taser report out/table
    """
    from taser.compare._jobs import Queue

    if not (folder / "runs").is_dir():
        raise ValueError(f"there is no study in {folder}: make one with `taser study table`")
    show(*study.report_on(Queue(folder / "runs"), folder), "rows.json")
