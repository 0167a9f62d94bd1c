"""Answers for machines: with --json the result is all that stands on stdout."""

import json as encoding
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

STDOUT: ContextVar[TextIO | None] = ContextVar("STDOUT", default=None)
RECORDS = ("results.json", "evaluation.json", "rows.json")  # as taser.report names them
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and all else to stderr.")
]


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option --json more; its result goes through `show` or `answer`."""

    @wraps(command)
    def longer(*arguments: Any, json: bool = False, **options: Any) -> None:
        with _set_aside() if json else nullcontext():
            command(*arguments, **options)

    known = signature(command)
    extra = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    longer.__signature__ = known.replace(  # type: ignore[attr-defined]
        parameters=[*known.parameters.values(), extra]
    )
    longer.__annotations__ = {**command.__annotations__, "json": Json}
    return longer


@contextmanager
def _set_aside() -> Iterator[None]:
    """Keep stdout for the answer; what anybody else prints goes to stderr."""
    before = STDOUT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        STDOUT.reset(before)


def wanted() -> bool:
    """Whether --json was given."""
    return STDOUT.get() is not None


def answer(result: Any) -> None:
    """Print the result: text that is JSON already, or what `json` knows."""
    whole = isinstance(result, str)
    text = result if whole else encoding.dumps(result, indent=1, ensure_ascii=False)
    print(text.rstrip("\n"), file=STDOUT.get())


def beside(page: Path) -> str:
    """The numbers that were written together with a report's page."""
    names = {page.with_suffix(".json").name, *RECORDS}
    there = [path for name in names if (path := page.parent / name).exists()]
    return max(there, key=lambda path: path.stat().st_mtime_ns).read_text()
