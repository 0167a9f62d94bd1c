"""A model that is only asked, never changed: for attacks, evaluation and their gradients."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType, MethodType

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@contextmanager
def frozen(model: Callable) -> Iterator[None]:
    """Evaluation mode for every module, each put back as it was.

    BatchNorm then uses its running statistics, and leaves them alone: in training mode it couples
    the examples, so that the gradient of a sum is no longer each example's own. Dropout rests, or
    every point of a difference would see another network. The flags are set directly, because a
    model may do more than that in its own `eval()`.
    """
    modules = [module for root in roots(model) for module in root.modules() if not _kept(module)]
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


@contextmanager
def untouched_randomness(device: torch.device) -> Iterator[None]:
    """Put the global random state back, of the CPU and of `device`, whatever the model draws."""
    others = [device] if device.type != "cpu" else []
    with torch.random.fork_rng(others, device_type=device.type if others else "cuda"):
        yield


@contextmanager
def kept_buffers(module: nn.Module) -> Iterator[None]:
    """Put every buffer back, so that forwards in training mode leave no trace in statistics."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _kept(module: nn.Module) -> bool:
    """Recurrent layers without dropout: the mode changes nothing, but cuDNN wants training."""
    return isinstance(module, nn.RNNBase) and not module.dropout


def roots(model: Callable) -> list[nn.Module]:
    """The modules behind a model: itself, or those that a function or an object refers to.

    However deep: a function may call a function that holds the module.
    """
    found: list[nn.Module] = []
    seen: set[int] = set()
    held: list[object] = [model]
    for thing in held:  # which grows on the way
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            found.append(thing)
        elif isinstance(thing, list | tuple):
            held += thing
        elif callable(thing) and not isinstance(thing, type):
            held += _held_by(thing)
    return found


def _held_by(function: Callable) -> Iterator[object]:
    """What a method, a partial, a closure, a function or a callable object is made of."""
    if isinstance(function, functools.partial):
        yield from (function.func, *function.args, *function.keywords.values())
    if isinstance(function, MethodType):
        owner = function.__self__
        yield owner
        if not isinstance(owner, nn.Module | type):
            yield from getattr(owner, "__dict__", {}).values()
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # a name that is not given yet
            yield cell.cell_contents
    if isinstance(function, FunctionType):
        if not (function.__module__ or "").startswith("torch."):  # whose functions hold no model
            known = function.__globals__
            yield from (known[name] for name in function.__code__.co_names if name in known)
    else:
        yield from getattr(function, "__dict__", {}).values()


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile wraps this module, as a wrapper or in place."""
    compiled_in_place = getattr(module, "_compiled_call_impl", None) is not None
    return compiled_in_place or type(module).__name__ == "OptimizedModule"


def any_compiled(model: Callable) -> bool:
    """Whether anything in the model is compiled."""
    return any(is_compiled(module) for root in roots(model) for module in root.modules())


def unwrapped(model: Callable) -> Callable:
    """The module inside DistributedDataParallel.

    Its parameters are the same and still report their gradients to the wrapper, which would
    otherwise broadcast buffers in place between the penalty's forwards and its backward.
    """
    return model.module if isinstance(model, DistributedDataParallel) else model


@contextmanager
def quiet(model: Callable) -> Iterator[None]:
    """Evaluation mode, and no gradients for parameters; all put back as it was.

    So BatchNorm's running statistics stay, `.grad` of parameters stays, and the backward pass
    computes what the input needs and nothing else.
    """
    parameters = [p for root in roots(model) for p in root.parameters() if p.requires_grad]
    with frozen(model):
        try:
            for parameter in parameters:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)
