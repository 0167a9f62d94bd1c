"""What every command shares: errors in one line, a progress bar, where results go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Out = Annotated[Path, typer.Option(help="Folder for the report, its figures and its numbers.")]
Root = Annotated[
    Path | None, typer.Option(help="The cache; by default $TASER_CACHE or ~/.cache/taser.")
]


class PlainErrors(TyperGroup):
    """Commands whose errors are one line and exit code 1; `taser --debug …` shows a traceback."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            if ctx.params.get("debug"):
                raise
            typer.secho(f"taser: {error}", fg="red", err=True)
            raise typer.Exit(1) from None


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None]]:
    """A bar in the terminal, fed by progress(done, total, label)."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeLeft())
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def progress(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield progress


def show(page: Path, summary: list[str]) -> None:
    """The findings in plain language, and where the rest is."""
    for line in summary:
        typer.echo(line)
    typer.echo(f"\nReport: {page}")
