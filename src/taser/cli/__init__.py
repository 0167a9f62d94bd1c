"""The command line: `taser --help`."""

from pathlib import Path
from typing import Annotated

import typer

from . import audit, bench, data, doctor, evaluate, score, shift, study, train
from .common import Out, PlainErrors
from .machine import with_json

app = typer.Typer(
    help="Robust training that follows the geometry of the data.",
    cls=PlainErrors,
    no_args_is_help=True,
    epilog="Exit codes: 0 fine; 1 an error, such as bad input; 2 wrong usage; 3 a verdict against "
    "the model (audit: do not trust; evaluate: less than --at-least); 130 stopped by Ctrl-C.",
    pretty_exceptions_enable=False,
)
for group in (study.app, bench.app):
    for entry in group.registered_commands:
        if entry.callback not in (None, study.work):  # which has no result of its own
            entry.callback = with_json(entry.callback)
app.add_typer(data.app, name="data")
app.add_typer(score.app, name="score")
app.add_typer(study.app, name="study")
app.add_typer(bench.app, name="bench")
app.command()(train.train)
app.command()(train.finetune)
app.command()(train.recipes)
app.command()(evaluate.evaluate)
app.command()(audit.audit)
app.command()(shift.shift)
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
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 2,
) -> None:
    """Train digits without and with TASER, attack, audit, and report: minutes, no download.

    Example: taser demo --out out/demo
    """
    from taser.report import demo as words
    from taser.report import method_study as report
    from taser.studies.table import results
    from taser.studies.table_config import read_table_config

    from .common import show

    queue = study.run_queue(read_table_config("studies/demo"), out, jobs, threads=1)
    rows = report.table_rows(queue)
    lines = words.conclusion(rows, results(queue))
    page = report.write(
        queue, out, title="TASER on handwritten digits", conclusion=lines, closing=[words.NEXT],
        paper=False,
    )  # fmt: skip
    typer.echo(report.tables(rows)[0].markdown())
    show(page, [*lines, words.NEXT])


@app.command()
@with_json
def report(
    folder: Annotated[Path, typer.Argument(help="Made by `taser study table`, finished or not.")],
) -> None:
    """Make the report of a table anew, from the runs that are finished by now.

    Example: taser report out/table
    """
    from taser.report import method_study
    from taser.studies.queue import Queue

    from .common import show

    if not (folder / "runs").is_dir():
        raise ValueError(f"there is no study in {folder}: make one with `taser study table`")
    queue = Queue(folder / "runs")
    rows = method_study.table_rows(queue)
    page = method_study.write(queue, folder, title=f"Robust training methods: {folder.name}")
    show(page, method_study.summary(rows))
