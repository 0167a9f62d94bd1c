"""The command line: `taser --help`."""

from pathlib import Path
from typing import Annotated

import typer

from . import audit, compare, data, doctor, evaluate, score, shift, study, train
from .common import Jobs, Out, PlainErrors, show
from .machine import with_json

app = typer.Typer(
    help="Robust training that follows the geometry of the data.",
    cls=PlainErrors,
    no_args_is_help=True,
    epilog="Exit codes: 0 fine; 1 an error, such as bad input; 2 wrong usage; 3 a verdict against "
    "the model (audit: do not trust; evaluate: less than --at-least); 130 stopped by Ctrl-C.",
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(score.app, name="score")
app.add_typer(study.app, name="study")
app.command()(train.train)
app.command()(train.finetune)
app.command()(train.recipes)
app.command()(evaluate.evaluate)
app.command()(audit.audit)
app.command()(shift.shift)
app.command()(compare.compare)
app.command()(doctor.doctor)


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
def demo(
    out: Out = Path("out/demo"),
    jobs: Jobs = 2,
) -> None:
    """Train digits without and with TASER, attack, audit, and report: minutes, no download.

    Example: taser demo --out out/demo
    """
    from taser.report import demo as words
    from taser.report import method_study as report
    from taser.report.finished import Finished
    from taser.studies.table_recipe import read_table_config

    queue = study.run_queue(read_table_config("studies/demo"), out, jobs, threads=1)
    found = Finished.of(queue)
    rows = found.rows()
    lines = words.conclusion(rows, found.runs)
    page, _ = report.write(
        found, out, title="TASER on handwritten digits", conclusion=lines, closing=[words.NEXT],
        paper=False,
    )  # fmt: skip
    typer.echo(report.tables(rows)[0].markdown())
    show(page, [*lines, words.NEXT])


@app.command()
@with_json
def report(
    folder: Annotated[Path, typer.Argument(help="Of `taser study table`, finished or not.")],
) -> None:
    """Make the report of a study anew, from the runs that are finished by now.

    Example: taser report out/table
    """
    from taser.studies.queue import Queue

    if not (folder / "runs").is_dir():
        raise ValueError(f"there is no study in {folder}: make one with `taser study table`")
    show(*study.report_on(Queue(folder / "runs"), folder))
