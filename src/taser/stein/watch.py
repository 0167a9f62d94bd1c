"""Finds kernels that would make a residual, or its gradient, silently wrong, as they run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .guards import Backend, UnsupportedLayer, place


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
