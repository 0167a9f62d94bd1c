"""Devices, precision, processes and seeds; the arguments of public calls are checked."""

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn


def default_device() -> torch.device:
    """The GPU, if it computes in float64 as the statistics do; else the CPU.

    Processes that torchrun starts on one machine take its GPUs in turn.
    """
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None or found.type == "mps":
        return torch.device("cpu")
    if place := int(os.environ.get("LOCAL_RANK", "0")):
        return torch.device(found.type, place % torch.accelerator.device_count())
    return found


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16; emulated, it is many times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def rows_like(numbers: Tensor, x: Tensor) -> Tensor:
    """One number an example, (B,), shaped to multiply or to choose rows of x, (B, *): (B, 1, …).

    >>> import torch
    >>> rows_like(torch.arange(2), torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 1, 1, 1])
    """
    return numbers.view(-1, *[1] * (x.ndim - 1))


def noise_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws of N(0, I) in the shape and dtype and on the device of x."""
    return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)


def full_precision(tensor: Tensor) -> Tensor:
    """At least float32: derivatives, exponentials and statistics are not for half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def world_size() -> int:
    """How many processes share the global batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_main_process() -> bool:
    """Whether this process writes files and prints: the first of several, or the only one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"  # set by torchrun


def all_sum(tensor: Tensor) -> Tensor:
    """Sum `tensor` over the processes, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def average_buffers(module: nn.Module) -> None:
    """Give all processes the mean of their buffers, such as BatchNorm's statistics."""
    for buffer in module.buffers():
        if buffer.is_floating_point():
            all_sum(buffer).div_(world_size())


def exit_process() -> None:
    """End this process at once with exit code 0 if it is one of several; else do nothing.

    DistributedDataParallel keeps gloo's threads alive beyond destroy_process_group (torch 2.13). If
    a tensor is freed while the interpreter shuts down, the process aborts, and a finished run
    counts as failed.
    """
    if world_size() > 1:
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


WEIGHTS, VALIDATION = 0, 1  # what is drawn outside of steps


def combine_seeds(*numbers: int) -> int:
    """One seed from several numbers; different tuples give different seeds.

    The length is part of it, because SeedSequence takes (1,) and (1, 0) for the same.
    """
    return int(np.random.SeedSequence((len(numbers), *numbers)).generate_state(1)[0])


def seeded_step(seed: int, step: int, rank: int, device: torch.device) -> torch.Generator:
    """The generator of one training step; the global one, which dropout uses, is seeded as well.

    So a resumed run draws what an uninterrupted one would, and no generator's state is saved.
    """
    torch.manual_seed(combine_seeds(seed, step, rank, 0))
    return torch.Generator(device).manual_seed(combine_seeds(seed, step, rank, 1))


METHODS = ("__init__", "__call__", "forward", "loss", "fit", "apply", "at", "log_prob", "sample")
HERE = str(Path(__file__).parent)
LIBRARIES = (str(Path(torch.__file__).parents[1]), str(Path(traceback.__file__).parent))
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text",
         Tensor: "a tensor", torch.Generator: "a torch.Generator"}  # fmt: skip


def warn_user(message: str) -> None:
    """Warn at the line of the user's that called, below all frames of taser and of libraries."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_code.co_filename.startswith((HERE, *LIBRARIES)):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


class ArgumentError(TypeError, ValueError):
    """An argument of another type than a public function takes."""


class CallError(ValueError, RuntimeError):
    """A call failed inside of torch or another library; the message names what was given."""


def wrap_public_api(
    names: dict[str, Any], public: Iterable[str], methods: Iterable[str] = METHODS
) -> None:
    """Replace each public function and method in a module's `globals()` by a wrapper.

    The wrapper checks the types of arguments, and names arguments in errors from libraries.
    """
    for name in public:
        found = names[name]
        if isinstance(found, FunctionType):
            names[name] = _checked(found)
        elif isinstance(found, type) and not getattr(found, "_is_protocol", False):
            for key, method in [(key, vars(found).get(key)) for key in methods]:
                if isinstance(method, classmethod):
                    setattr(found, key, classmethod(_checked(method.__func__)))
                elif isinstance(method, FunctionType):
                    setattr(found, key, _checked(method))


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
                wanted = _wanted(kind) + ", such as score(x)" * (name == "s" and callable(value))
                raise ArgumentError(f"{name} should be {wanted}; got {_short(value)}")
        try:
            return function(*values, **options)
        except (RuntimeError, LookupError, AttributeError, ArithmeticError, TypeError,
                ValueError, AssertionError) as error:  # fmt: skip
            last = traceback.extract_tb(error.__traceback__)[-1]
            here, library = last.filename.startswith(HERE), last.filename.startswith(LIBRARIES)
            on_purpose = here and (last.line or "").startswith("raise")
            of_the_user = not (here or library or last.filename.endswith(".pyx"))
            if on_purpose or of_the_user or isinstance(error, torch.OutOfMemoryError):
                raise
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
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, Integral) and abs(int(value)) < 2**63
    if kind is float:
        fraction = isinstance(value, str) and value[:1].isdigit()  # such as "8/255"
        return fraction or isinstance(value, Real)
    if origin is Callable or getattr(kind, "_is_protocol", False):
        return callable(value)
    if origin in (list, tuple, Sequence):
        return isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    plain = isinstance(kind, type) and kind is not Any and origin is None
    return isinstance(value, kind) if plain else True


def _wanted(kind: Any) -> str:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        parts = [part for part in get_args(kind) if part is not NoneType]
        return " or ".join(dict.fromkeys(map(_wanted, parts)))
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if origin is Callable or getattr(kind, "_is_protocol", False):
        return "callable"
    return WORDS.get(kind, "a list" if origin else f"of type {getattr(kind, '__name__', kind)}")


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    text = repr(value) if isinstance(value, str | Real | NoneType | Path) else ""
    return text if 0 < len(text) < 100 else type(value).__name__
