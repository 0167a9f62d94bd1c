"""Run a model without changing it: eval mode, random state and buffers, restored afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def check_module(model: object) -> nn.Module:
    """The model, checked to be a module, whose mode can be changed and restored."""
    if isinstance(model, nn.Module):
        return model
    raise TypeError(
        "the model should be a torch.nn.Module, so that it can be put into eval mode; got "
        f"{type(model).__name__}. Wrap a function together with the modules that it calls: "
        "taser.models.Wrapped(function, module)"
    )


def outputs_of(model: Callable, x: Tensor) -> Tensor:
    """model(x), checked to be a tensor."""
    outputs: object = model(x)
    if not isinstance(outputs, Tensor):
        wrapped = "taser.models.Wrapped(lambda x: model(x)[…], model) returns a tensor"
        raise TypeError(
            f"the model should return a tensor; got {type(outputs).__name__}: {wrapped}"
        )
    return outputs


@contextmanager
def eval_mode(model: object, *, freeze: bool = False) -> Iterator[None]:
    """Eval mode for every submodule, each restored to its own mode.

    In training mode BatchNorm couples the examples of a batch and changes its running statistics,
    and dropout draws. The flags are set directly, because a model may override `eval()`.

    freeze: no gradients for parameters, so that a backward pass computes input gradients only.
    """
    module = check_module(model)
    # cuDNN differentiates recurrent layers in training mode only; without dropout modes are equal.
    modules = [p for p in module.modules() if not isinstance(p, nn.RNNBase) or p.dropout]
    modes = [part.training for part in modules]
    parameters = [p for p in module.parameters() if p.requires_grad] if freeze else []
    try:
        for part in modules:
            part.training = False
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for part, mode in zip(modules, modes, strict=True):
            part.training = mode
        for parameter in parameters:
            parameter.requires_grad_(True)


@contextmanager
def restored_rng(device: torch.device) -> Iterator[None]:
    """Restore the global random state of the CPU and of `device`."""
    others = [device] if device.type != "cpu" else []
    with torch.random.fork_rng(others, device_type=device.type if others else "cuda"):
        yield


@contextmanager
def restored_buffers(module: nn.Module, kept: tuple[type[nn.Module], ...] = ()) -> Iterator[None]:
    """Replace buffers by copies meanwhile, so that forwards leave the module's buffers unchanged.

    A graph that saved a copy stays valid. kept: layers whose buffers are not replaced.
    """
    parts = [part for part in module.modules() if not isinstance(part, kept)]
    before = [(part, name, own) for part in parts for name, own in part._buffers.items()]
    copies = {id(own): own.clone() for _, _, own in before if own is not None}  # some are shared
    try:
        for part, name, own in before:
            setattr(part, name, copies.get(id(own)))
        yield
    finally:
        for part, name, own in before:
            setattr(part, name, own)


@contextmanager
def without_checkpointing() -> Iterator[None]:
    """Keep the activations that torch.utils.checkpoint would compute again in the backward pass.

    In the backward pass modules are in training mode again: BatchNorm would use and change batch
    statistics, dropout would drop. And reentrant checkpointing loses the gradient of a block whose
    input requires none.
    """

    class Call:
        @staticmethod
        def apply(function: Callable, _preserve: bool, *inputs: Any) -> Any:
            return function(*inputs)

    def call(*_args: Any, **_kwargs: Any) -> Iterator[None]:
        yield

    with (
        patch.object(torch.utils.checkpoint, "CheckpointFunction", Call),
        patch.object(torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", call),
    ):
        yield


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile wraps this module, as a wrapper or in place."""
    compiled_in_place = getattr(module, "_compiled_call_impl", None) is not None
    return compiled_in_place or type(module).__name__ == "OptimizedModule"


def any_compiled(model: Callable) -> bool:
    """Whether any submodule is compiled."""
    return isinstance(model, nn.Module) and any(is_compiled(part) for part in model.modules())


def unwrap_ddp(model: Callable) -> Callable:
    """The module inside DistributedDataParallel.

    Its parameters still report their gradients to the wrapper. A forward of the wrapper itself
    would broadcast buffers in place between the penalty's forwards and its backward.
    """
    return model.module if isinstance(model, DistributedDataParallel) else model
