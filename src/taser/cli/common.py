"""What every command shares: errors in one line, a progress bar, where results go."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from taser.progress import Progress as Told

from . import machine

ERROR, VERDICT, INTERRUPTED = 1, 3, 130
"""Exit codes: bad input, a verdict against the model, Ctrl-C; beside 0 and typer's 2, usage."""

SECONDS_BETWEEN_LINES = 20.0

Out = Annotated[Path, typer.Option(help="Folder for the report, its figures and its numbers.")]
Root = Annotated[
    Path | None, typer.Option(help="The cache; by default $TASER_CACHE or ~/.cache/taser.")
]
Seed = Annotated[int, typer.Option(help="Of everything that is drawn at random.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; by default all.")]


Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time.")]


def use_threads(threads: int | None) -> None:
    """That many CPU threads, if a number is given."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


class PlainErrors(TyperGroup):
    """Commands whose errors are one line and exit code 1; `taser --debug …` shows a traceback."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # the last: `taser … | head`
            raise
        except KeyboardInterrupt:
            typer.secho("\ntaser: stopped", fg="red", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            if ctx.params.get("debug"):
                raise
            typer.secho(f"taser: {error}", fg="red", err=True)
            raise typer.Exit(ERROR) from None


@contextmanager
def progress_bar() -> Iterator[Told]:
    """A bar in the terminal, on stderr, fed by progress(done, total, label)."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeLeft())
    with Progress(*columns, transient=True, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("starting", total=None)

        def progress(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield progress


def _lines() -> Told:
    """A line now and then, for a log."""
    last = time.monotonic()

    def progress(done: int, total: int, label: str) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            typer.echo(f"{done / max(total, 1):4.0%}  {label}", err=True)

    return progress


def show(page: Path, summary: list[str]) -> None:
    """The findings in plain language, and where the rest is; with --json the numbers as well."""
    for line in summary:
        typer.echo(line)
    typer.echo(f"\nReport: {page}")
    if machine.wanted():
        machine.answer(machine.beside(page))
