"""Answers for machines: with --json the result is all that stands on stdout."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

STDOUT: ContextVar[TextIO | None] = ContextVar("STDOUT", default=None)
RECORDS = ("results.json", "evaluation.json", "rows.json")  # as taser.report names them


@contextmanager
def _set_aside() -> Iterator[None]:
    """Keep stdout for the answer; what anybody else prints goes to stderr."""
    before = STDOUT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        STDOUT.reset(before)


def _begin(ctx: typer.Context, value: bool) -> bool:
    if value and not ctx.resilient_parsing:  # Tab asks too, and wants no answer
        ctx.with_resource(_set_aside())
    return value


Json = Annotated[
    bool,
    typer.Option("--json", callback=_begin, help="Print the result as JSON, the rest to stderr."),
]


def wanted() -> bool:
    """Whether --json was given."""
    return STDOUT.get() is not None


def answer(result: Any) -> None:
    """Print the result: text that is JSON already, or what `json` knows."""
    text = result if isinstance(result, str) else json.dumps(result, indent=1, ensure_ascii=False)
    print(text.rstrip("\n"), file=STDOUT.get())


def beside(page: Path) -> str:
    """The numbers that were written together with a report's page."""
    names = {page.with_suffix(".json").name, *RECORDS}
    there = [path for name in names if (path := page.parent / name).exists()]
    return max(there, key=lambda path: path.stat().st_mtime_ns).read_text()


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option --json more, for one whose result goes through `show`."""

    @wraps(command)
    def longer(*arguments: Any, json: bool = False, **options: Any) -> None:  # noqa: ARG001 — `show` asks wanted()
        command(*arguments, **options)

    known = signature(command)
    extra = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    longer.__signature__ = known.replace(  # type: ignore[attr-defined]
        parameters=[*known.parameters.values(), extra]
    )
    longer.__annotations__ = {**command.__annotations__, "json": Json}
    return longer
