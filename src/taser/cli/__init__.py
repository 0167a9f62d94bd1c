"""The command line: `taser --help`."""

from pathlib import Path
from typing import Annotated

import typer

from . import data, score, study, train
from .common import Out, PlainErrors

app = typer.Typer(
    help="Robust training that follows the geometry of the data.",
    cls=PlainErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(score.app, name="score")
app.add_typer(study.app, name="study")
app.command()(train.train)
app.command()(train.finetune)
app.command()(train.recipes)


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
def demo(out: Out = Path("out/demo")) -> None:
    """What TASER does, in under two minutes, with nothing to download.

    Example: taser demo --out out/demo
    """
    study.toy1d(out=out, seeds=3)
