"""`taser doctor`: what is here and what is missing."""

from collections.abc import Iterator
from typing import Any

import typer

from .common import ERROR, Root
from .installation import examine
from .machine import answer, wanted, with_json


@with_json
def doctor(root: Root = None) -> None:
    """Versions, device, cache, extras and compiler; exit code 1 if something needed is missing.

    Example: taser doctor --json
    """
    found = examine(root)
    if wanted():
        answer(found)
    else:
        typer.echo("\n".join(_lines(found)))
    if not found["ok"]:
        raise typer.Exit(ERROR)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    versions = found["versions"]
    yield f"taser {versions['taser']}, Python {versions['python']}, {found['platform']}"
    yield "\nNeeded"
    for entry in found["needed"]:
        state = "" if entry["ok"] else f"  MISSING: at least {entry['wanted']}"
        yield f"  {entry['package']:13} {entry['found'] or '–'}{state}"
    yield "\nOptional"
    for entry in found["extras"]:
        state = entry["found"] if entry["ok"] else f"–, {entry['install']}"
        yield f"  {entry['package']:13} {entry['for']}: {state}"
    compiler = found["compiler"] or "–, install g++ or clang++"
    yield f"  {'C++ compiler':13} for torch.compile (loop.compile=true): {compiler}"
    if device := found["device"]:
        bfloat16 = "bfloat16" if device["bfloat16"] else "no fast bfloat16"
        yield f"\nDevice\n  {device['kind']} ({device['name']}), {bfloat16}, " + (
            f"{device['threads']} CPU threads"
        )
        yield from (f"  {note}" for note in found["notes"])
    if cache := found["cache"]:
        yield f"\nCache\n  {cache['folder']}, {_megabytes(cache['bytes'])}"
        for name, entry in cache["holds"].items():
            state = _megabytes(entry["bytes"]) if entry["ready"] else f"–, {_how(name)}"
            yield f"  {name:25} {state}"
    yield "\nAll that is needed is here." if found["ok"] else "\nSomething needed is missing."


def _how(name: str) -> str:
    return "fetched when asked for" if name.startswith("known:") else f"taser data fetch {name}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
