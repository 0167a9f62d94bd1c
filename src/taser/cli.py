"""The command line: `taser --help`."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Robust training that follows the geometry of the data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
study = typer.Typer(help="Experiments, each with a report.", no_args_is_help=True)
app.add_typer(study, name="study")

Out = Annotated[Path, typer.Option(help="Folder for the report, figures and figures' numbers.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def plain_errors(command: Callable) -> Callable:
    """Print what went wrong in one line and leave with exit code 1, unless --debug is given."""

    @functools.wraps(command)
    def wrapped(*args: Any, debug: bool, **options: Any) -> Any:
        try:
            return command(*args, debug=debug, **options)
        except (ValueError, RuntimeError, OSError) as error:
            if debug:
                raise
            typer.secho(f"taser: {error}", fg="red", err=True)
            raise typer.Exit(1) from None

    return wrapped


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Robust training that follows the geometry of the data."""
    if version:
        import taser

        typer.echo(f"taser {taser.__version__}")
        raise typer.Exit


@study.command()
@plain_errors
def toy1d(
    out: Out = Path("out/toy1d"),
    seeds: Annotated[int, typer.Option(min=1, help="Networks for every setting.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Processes to train in.")] = 2,
    debug: Debug = False,
) -> None:
    """Regression of sin x: the paper's Table 1, with its figure.

    Example: taser study toy1d --seeds 3 --out out/toy1d
    """
    from taser.report import toy1d as report
    from taser.studies import toy1d as experiment

    with progress_bar() as progress:
        result = experiment.run(experiment.Config(seeds=seeds, jobs=jobs), progress=progress)
    show(report.write(result, out), report.summary(result))


@study.command()
@plain_errors
def manifold2d(
    out: Out = Path("out/manifold2d"),
    seeds: Annotated[int, typer.Option(min=1, help="Networks for every setting.")] = 3,
    debug: Debug = False,
) -> None:
    """A classifier on a curve in the plane: the paper's Figure 1, measured.

    Example: taser study manifold2d --out out/manifold2d
    """
    from taser.report import manifold2d as report
    from taser.studies import manifold2d as experiment

    with progress_bar() as progress:
        result = experiment.run(experiment.Config(seeds=seeds), progress=progress)
    show(report.write(result, out), report.summary(result))


@app.command()
@plain_errors
def demo(out: Out = Path("out/demo"), debug: Debug = False) -> None:
    """What TASER does, in under two minutes, with nothing to download.

    Example: taser demo --out out/demo
    """
    toy1d(out=out, seeds=3, jobs=2, debug=debug)


class progress_bar:  # noqa: N801 — used as `with progress_bar() as progress`
    """A bar in the terminal, fed by progress(done, total, label)."""

    def __enter__(self) -> Callable[[int, int, str], None]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as TimeLeft

        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft()
        )
        self.bar.start()
        task = self.bar.add_task("starting")
        return lambda done, total, label: self.bar.update(
            task, completed=done, total=total, description=label
        )

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


def show(page: Path, summary: list[str]) -> None:
    """The findings in plain language, and where the rest is."""
    for line in summary:
        typer.echo(line)
    typer.echo(f"\nReport: {page}")


if __name__ == "__main__":
    sys.exit(app())
