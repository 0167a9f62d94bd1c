"""Arguments of public calls, checked against their annotations; failed calls say what they got."""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

METHODS = ("__init__", "__call__", "forward", "loss", "fit", "apply", "at", "log_prob", "sample")
HERE = str(Path(__file__).parent)
LIBRARIES = (str(Path(torch.__file__).parents[1]), str(Path(traceback.__file__).parent))
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text",
         Tensor: "a tensor", NoneType: "None"}  # fmt: skip


class CallError(ValueError, RuntimeError):
    """A call failed inside of torch or another library; the message names what was given."""


def check_arguments(names: dict[str, Any], public: Iterable[str]) -> None:
    """Check the arguments of a package's public functions and classes, given its `globals()`."""
    for name in public:
        found = names[name]
        if isinstance(found, FunctionType):
            names[name] = _checked(found)
        elif isinstance(found, type) and not getattr(found, "_is_protocol", False):
            for method in METHODS:
                own = vars(found).get(method)
                if isinstance(own, classmethod):
                    setattr(found, method, classmethod(_checked(own.__func__)))
                elif isinstance(own, FunctionType):
                    setattr(found, method, _checked(own))


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    form, title = signature(function), function.__qualname__.removesuffix(".__init__")
    kinds = cache(lambda: get_type_hints(function))
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    names = [n for n, p in form.parameters.items() if p.kind not in variable and n != "self"]

    @wraps(function)
    def wrapper(*values: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*values, **options)
        try:
            bound = form.bind(*values, **options).arguments
        except TypeError as error:
            raise TypeError(f"{title}: {error}") from None
        given = {name: bound[name] for name in names if name in bound}
        for name, value in given.items():
            kind = kinds().get(name, Any)
            if not _fits(value, kind):
                raise TypeError(f"{name} should be {_wanted(kind)}; got {_short(value)}")
        try:
            return function(*values, **options)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, LookupError, AttributeError, ArithmeticError, TypeError,
                ValueError, AssertionError) as error:  # fmt: skip
            last = traceback.extract_tb(error.__traceback__)[-1]
            here, library = last.filename.startswith(HERE), last.filename.startswith(LIBRARIES)
            on_purpose = here and (last.line or "").startswith("raise")
            if on_purpose or not (here or library or last.filename.endswith(".pyx")):
                raise  # the last: in the code of the user
            got = ", ".join(f"{name} = {_short(value)}" for name, value in given.items())
            raise CallError(f"{title} failed with {got}: {error}") from error

    return wrapper


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of the annotated kind; kinds that are not known fit."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str)  # which one is the function's to check
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        return whole and abs(int(value)) < 2**63
    if kind is float:
        share = isinstance(value, str) and "/" in value  # such as 8/255
        return share or (isinstance(value, Real) and not isinstance(value, bool))
    if origin is Callable or getattr(kind, "_is_protocol", False):
        return callable(value)
    if origin in (list, tuple, Sequence):
        return isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    plain = isinstance(kind, type) and kind is not Any and origin is None
    return isinstance(value, kind) if plain else True


def _wanted(kind: Any) -> str:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_wanted, get_args(kind))))
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if origin is Callable or getattr(kind, "_is_protocol", False):
        return "callable"
    return WORDS.get(kind, "a list" if origin else f"of type {getattr(kind, '__name__', kind)}")


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    text = repr(value) if isinstance(value, str | Real | NoneType | Path) else ""
    return text if 0 < len(text) < 100 else f"a {type(value).__name__}"
