"""The command line: `taser --help`."""

from typing import Annotated

import typer

from ._certify_command import certify
from ._compare_commands import compare, demo
from ._data_commands import app as data_app
from ._doctor import doctor
from ._evaluate_commands import audit, evaluate, shift
from ._export_command import export
from ._options import PlainErrors
from ._score_commands import app as score_app
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
for command in (
    demo,
    train,
    finetune,
    recipes,
    evaluate,
    audit,
    certify,
    shift,
    compare,
    export,
    doctor,
):
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
