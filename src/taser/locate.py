"""A callable of the user's, named by its module or its file."""

import hashlib
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from taser.nearest import unknown


def locate(spec: str) -> Callable[..., Any]:
    """The callable that "package.module:name" or "path/to/file.py:name" names.

    This imports the module, which is to say that it runs whatever code stands in it: name only
    files that you would run. A file is imported under a private name, so that it can neither
    hide nor replace a module that happens to be called the same.

    >>> locate("torch.nn:Linear")
    <class 'torch.nn.modules.linear.Linear'>
    """
    source, _, name = spec.rpartition(":")
    if not source or not name:
        raise ValueError(f"'package.module:callable' or 'file.py:callable' is needed; got {spec!r}")
    module = _of_file(Path(source)) if source.endswith(".py") else _of_package(source)
    found = getattr(module, name, None)
    if found is None:
        there = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise unknown(f"callable in {source}", name, there)
    if not callable(found):
        raise ValueError(f"{spec} should be callable; it is of type {type(found).__name__}")
    return found


def _of_package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it needs is not
        raise ValueError(
            f"there is no module {name!r} to import; if you mean a file, write 'path/to/file.py:…'"
        ) from error


def _of_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file at {path}")
    name = f"_taser_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
