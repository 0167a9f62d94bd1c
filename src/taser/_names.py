"""Wrong names with "did you mean", and callables imported by their names."""

import hashlib
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.machinery import SourceFileLoader
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any


def hint(given: object, names: Iterable[object]) -> str:
    """The end of an error about a wrong name: the nearest right one, if any is near.

    >>> hint("aple", ["apple", "pear"])
    " (did you mean 'apple'?)"
    """
    known = {normalise_name(name): name for name in names}
    near = get_close_matches(normalise_name(given), known, n=1, cutoff=0.5)
    return f" (did you mean {known[near[0]]!r}?)" if near else ""


def unknown(what: str, given: str, names: Iterable[str]) -> ValueError:
    """The error for a name that is none of `names`.

    >>> raise unknown("fruit", "aple", ["apple", "pear"])
    Traceback (most recent call last):
    ValueError: there is no fruit called 'aple' (did you mean 'apple'?); there are apple, pear
    """
    names = list(names)
    there = ", ".join(names) or "none"
    return ValueError(f"there is no {what} called {given!r}{hint(given, names)}; there are {there}")


def normalise_name(name: object) -> str:
    """A name without capitals, hyphens and underscores."""
    return str(name).lower().replace("-", "").replace("_", "")


def refuse_code(spec: str, source: str, *, trust_code: bool) -> None:
    """Raise if a file, `source`, names code to import and the user has not said to trust it."""
    if ":" in spec and not trust_code:
        trust = "if you trust it, give --trust-code (in Python trust_code=True)"
        raise ValueError(f"{source} names code, {spec}, which would be imported and run: {trust}")


def import_callable(spec: str) -> Callable[..., Any]:
    """The callable that "package.module:name" or "path/to/file.py:name" names.

    This imports the module and so runs its code. A file is imported under a private name, so that
    it cannot replace another module of the same name.

    >>> import_callable("torch.nn:Linear")
    <class 'torch.nn.modules.linear.Linear'>
    """
    source, _, name = spec.rpartition(":")
    if not source or not name:
        raise ValueError(f"'package.module:callable' or 'file.py:callable' is needed; got {spec!r}")
    module = _import_file(Path(source)) if source.endswith(".py") else _import_package(source)
    if not hasattr(module, name):
        there = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise unknown(f"callable in {source}", name, there)
    if not callable(found := getattr(module, name)):
        raise ValueError(f"{spec} should be callable; it is of type {type(found).__name__}")
    return found


def call_named(spec: str, kinds: tuple[type, ...], wanted: str, **options: Any) -> Any:
    """What the callable named by `spec` returns for the options; it must be of one of the kinds."""
    build = import_callable(spec)
    if isinstance(build, kinds):
        raise ValueError(f"{spec} is {wanted} already; name a function that returns one")
    try:
        signature(build).bind(**options)
    except TypeError as error:
        given = ", ".join(options) or "no options"
        raise ValueError(f"{spec} cannot be called with {given}: {error}") from error
    built = build(**options)
    if not isinstance(built, kinds):
        raise ValueError(f"{spec} should return {wanted}; got {type(built).__name__}")
    return built


def _import_package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it needs is not
        file = "of a file, write 'path/to/file.py:…'"
        raise ValueError(f"there is no module {name!r} to import; {file}") from error


def _import_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file at {path}")
    name = f"_taser_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    loader = SourceFileLoader(name, str(path))
    sys.modules[name] = module = ModuleType(name)  # dataclasses look themselves up there
    module.__file__ = str(path)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
