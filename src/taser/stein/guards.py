"""Finds what would make a residual, or its gradient, silently wrong, before it is used."""

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

Backend = Literal["difference", "reverse", "piecewise_linear", "exact"]


class UnsupportedLayer(ValueError):
    """A layer that this backend cannot differentiate; the message names one that works."""


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


def _kept(module: nn.Module) -> bool:
    """Recurrent layers without dropout: the mode changes nothing, but cuDNN wants training."""
    return isinstance(module, nn.RNNBase) and not module.dropout


def roots(model: Callable) -> list[nn.Module]:
    """The modules behind a model: itself, or those that a method, partial or closure refers to."""
    if isinstance(model, nn.Module):
        return [model]
    if isinstance(model, functools.partial):
        return roots(model.func)
    held = [getattr(model, "__self__", None)]
    held += [cell.cell_contents for cell in getattr(model, "__closure__", None) or ()]
    return [module for module in held if isinstance(module, nn.Module)]


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile wraps this module, as a wrapper or in place."""
    compiled_in_place = getattr(module, "_compiled_call_impl", None) is not None
    return compiled_in_place or type(module).__name__ == "OptimizedModule"


def unwrapped(model: Callable) -> Callable:
    """The module inside DistributedDataParallel.

    Its parameters are the same and still report their gradients to the wrapper, which would
    otherwise broadcast buffers in place between the penalty's forwards and its backward.
    """
    return model.module if isinstance(model, DistributedDataParallel) else model


def check_structure(model: Callable, backend: Backend) -> None:
    """Raise for wrappers and types that `backend` cannot work with."""
    for root in roots(model):
        _check_wrappers(root, backend)
        _check_precision(root, backend)


def _check_wrappers(model: nn.Module, backend: Backend) -> None:
    for name, module in model.named_modules():
        kind = type(module).__name__
        if backend != "difference" and is_compiled(module):
            raise UnsupportedLayer(
                f"{place(name)} is compiled, and torch.compile has no double backward "
                f"(pytorch#91469), which backend={backend!r} needs. Use backend='difference', or "
                "pass the module that was compiled (its ._orig_mod)"
            )
        if backend != "difference" and (
            kind == "FullyShardedDataParallel" or kind.startswith("FSDP")
        ):
            raise UnsupportedLayer(
                f"{place(name)} is sharded by FSDP, which frees parameters that backend="
                f"{backend!r} needs for its second derivative. Use backend='difference'"
            )


def _check_precision(model: nn.Module, backend: Backend) -> None:
    on_cuda = any(parameter.is_cuda for parameter in model.parameters())
    if backend == "difference" and on_cuda and torch.backends.cudnn.allow_tf32:
        warnings.warn(
            "convolutions may run in TF32, whose rounding a second difference magnifies; set "
            "torch.backends.cudnn.allow_tf32 = False, or use another backend",
            stacklevel=2,
        )
    for name, parameter in model.named_parameters():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            raise UnsupportedLayer(
                f"parameter '{name}' is {parameter.dtype}: derivatives of the input drown in its "
                "rounding. Keep the parameters in float32; autocast around the loop is fine, the "
                "penalty steps out of it"
            )


class Watched:
    """A function whose first call is watched for kernels that `backend` cannot work with."""

    def __init__(self, function: Callable[[Tensor], Tensor], backend: Backend, graph: bool) -> None:
        self.function = function
        self.watch: KernelWatch | None = KernelWatch(backend, graph)

    def __call__(self, x: Tensor) -> Tensor:
        if self.watch is None:
            return self.function(x)
        watch, self.watch = self.watch, None
        with _layer_names(self.function, watch), watch:
            output = self.function(x)
        check_recomputation(output)
        return output


def check_recomputation(output: object) -> None:
    """Raise if reentrant checkpointing will run a block again in the backward pass.

    By then the penalty has given the model its modes back: BatchNorm would use and change batch
    statistics, dropout would drop. (Non-reentrant checkpointing notices, and raises by itself.)
    """
    seen: set = set()
    nodes = [output.grad_fn] if isinstance(output, Tensor) else []
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            raise UnsupportedLayer(
                "the model recomputes a part of itself in the backward pass (reentrant "
                "torch.utils.checkpoint), after the penalty has put its modes back. Switch "
                "checkpointing off for the penalty's pass"
            )
        nodes += [parent for parent, _ in node.next_functions]


class KernelWatch(TorchDispatchMode):
    """Sees every kernel that runs, whether a module or a functional call asked for it."""

    def __init__(self, backend: Backend, graph: bool) -> None:
        super().__init__()
        self.backend = backend
        self.graph = graph  # whether parameter gradients of the residual will be wanted
        self.layers: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        problem = self.problem(func, args)
        if problem:
            layer = self.layers[-1] if self.layers else "f"
            raise UnsupportedLayer(f"{place(layer)} {problem}")
        return func(*args, **(kwargs or {}))

    def problem(self, func: Any, args: tuple) -> str | None:
        """What is wrong with this kernel here, or None."""
        name = func.name().removeprefix("aten::").partition(".")[0]
        if _uses_batch_statistics(func, args):
            if args[0].shape[0] > 1:
                return (
                    "normalises by the statistics of the batch, which couples the examples: no "
                    "residual is its own. Put it in evaluation mode, as taser.SteinPenalty does "
                    "with a module; without running statistics use another norm, as GroupNorm"
                )
            name = "native_instance_norm"  # which folds the batch into the channels
        if self.backend == "difference":
            if _draws_random_numbers(func, args):
                return (
                    f"draws random numbers ({name}), so the points of a difference would see "
                    "different networks. Switch the noise off, or use backend='reverse'"
                )
            return None
        if "attention" in name and "math" not in name:
            return (
                f"runs a fused attention kernel ({name}) that has no second derivative. Let it "
                "use the math kernel, or use backend='difference'"
            )
        if self.graph and name in ("native_layer_norm", "native_instance_norm"):
            return (
                f"runs a fused kernel ({name}) whose third derivative is silently wrong "
                "(pytorch#186256, #175754). Call it through torch.nn.functional, which is replaced "
                "by plain operations here, or use backend='difference'"
            )
        return None


def _uses_batch_statistics(func: Any, args: tuple) -> bool:
    """A BatchNorm kernel in training mode, whichever library it comes from."""
    name = func.name()
    if "batch_norm" not in name or "backward" in name:
        return False
    flags = [argument for argument in args if isinstance(argument, bool)]
    return flags[0] if flags else "with_update" in name or "stats" in name


def _draws_random_numbers(func: Any, args: tuple) -> bool:
    """A kernel that takes from the random state; attention does only if it drops something."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False))
    return "dropout_p" not in names or given.get("dropout_p", 0.0) > 0


@contextmanager
def _layer_names(function: Callable, watch: KernelWatch) -> Iterator[None]:
    """While inside, watch.layers is the stack of the modules being run."""
    modules = function.named_modules() if isinstance(function, nn.Module) else ()
    with ExitStack() as stack:
        for name, module in modules:

            def enter(_module: nn.Module, _args: Any, name: str = name) -> None:
                watch.layers.append(name)

            def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
                watch.layers.pop()

            stack.callback(module.register_forward_pre_hook(enter).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


def place(layer: str) -> str:
    """How an error names a module, given its dotted name."""
    return f"layer '{layer}'" if layer else "the model"
