"""What the commands share: options, JSON output, errors in one line and a progress bar."""

import json as encoding
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from taser._files import Progress as ProgressCallback

Out = Annotated[Path, typer.Option(help="Folder for the report, its figures and its numbers.")]
Root = Annotated[
    Path | None, typer.Option(help="The cache; by default $TASER_CACHE or ~/.cache/taser.")
]
Seed = Annotated[int, typer.Option(help="Of everything that is drawn at random.")]
Target = Annotated[str | None, typer.Option(help="For a table: the column to predict.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; by default all.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and all else to stderr.")
]

ERROR, VERDICT, INTERRUPTED = 1, 3, 130
"""Exit codes: bad input, a verdict against the model, Ctrl-C; beside 0 and typer's 2, usage."""


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


# JSON output: with --json stdout holds the result alone.

STDOUT: ContextVar[TextIO | None] = ContextVar("STDOUT", default=None)
"""Under --json the real stdout, while `sys.stdout` is stderr; else None."""


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option --json to a command, which prints its result by `show` or `print_json`."""

    @wraps(command)
    def wrapper(*arguments: Any, json: bool = False, **options: Any) -> None:
        with _stdout_to_stderr() if json else nullcontext():
            command(*arguments, **options)

    old = signature(command)
    option = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    wrapper.__signature__ = old.replace(  # type: ignore[attr-defined]
        parameters=[*old.parameters.values(), option]
    )
    wrapper.__annotations__ = {**command.__annotations__, "json": Json}
    return wrapper


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    before = STDOUT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        STDOUT.reset(before)


def json_wanted() -> bool:
    """Whether --json was given."""
    return STDOUT.get() is not None


def print_json(result: Any) -> None:
    """Print the result of a command with --json."""
    text = encoding.dumps(result, indent=1, ensure_ascii=False)
    print(text, file=STDOUT.get())


def show(page: Path, summary: list[str], record: str = "results.json") -> None:
    """The summary and where the report is; with --json also the record beside the report."""
    for line in summary:
        typer.echo(line)
    typer.echo(f"\nReport: {page}")
    if json_wanted():
        print((page.parent / record).read_text().rstrip("\n"), file=STDOUT.get())


# Progress, on stderr.

SECONDS_BETWEEN_LINES = 20.0


@contextmanager
def progress_bar() -> Iterator["ProgressCallback"]:
    """A bar fed by progress(done, total, label); lines now and then where stderr is a file."""
    if not sys.stderr.isatty():
        yield _progress_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeLeft())
    with Progress(*columns, transient=True, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, label: bar.update(
            task, completed=done, total=total, description=label
        )


def _progress_lines() -> "ProgressCallback":
    last = time.monotonic()

    def progress(done: int, total: int, label: str) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            typer.echo(f"{done / max(total, 1):4.0%}  {label}", err=True)

    return progress
