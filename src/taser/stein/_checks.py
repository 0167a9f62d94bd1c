"""What the operator refuses: wrong inputs and options, and layers whose derivatives are wrong."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from taser.probes import Probed

from ._model_state import is_compiled

Backend = Literal["difference", "reverse", "piecewise_linear", "exact"]
Operator = Literal["langevin", "first_order"]
Distribution = Literal["rademacher", "gaussian"]


class UnsupportedLayer(ValueError):
    """A layer that this backend cannot differentiate; the message names one that works."""


def check_structure(model: Callable, backend: Backend) -> None:
    """Raise for wrappers and types that `backend` cannot work with."""
    if not isinstance(model, nn.Module):
        return
    for name, module in model.named_modules() if backend != "difference" else ():
        kind = type(module).__name__
        if is_compiled(module):
            raise UnsupportedLayer(
                f"{place(name)} is compiled, and torch.compile has no double backward "
                f"(pytorch#91469), which backend={backend!r} needs. Use backend='difference', or "
                "pass the module that was compiled (its ._orig_mod)"
            )
        if kind == "FullyShardedDataParallel" or kind.startswith("FSDP"):
            raise UnsupportedLayer(
                f"{place(name)} is sharded by FSDP, which frees parameters that backend="
                f"{backend!r} needs for its second derivative. Use backend='difference'"
            )
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
                f"parameter '{name}' is {parameter.dtype}: derivatives of the input get lost in "
                "its rounding. Keep the parameters in float32; autocast around the loop is fine"
            )


def place(layer: str) -> str:
    """How an error names a module, given its dotted name."""
    return f"layer '{layer}'" if layer else "the model"


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Run LayerNorm, InstanceNorm and attention from operations that autograd knows throughout.

    The fused LayerNorm and InstanceNorm have a silently wrong third derivative (up to 70 % off in
    the parameter gradient of a Laplacian: pytorch#186256, #175754), and the fused attention has
    no second derivative. Only what is called inside this context is replaced.
    """
    with sdpa_kernel(SDPBackend.MATH), _PlainNorms():
        yield


class _PlainNorms(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None
    ) -> Any:
        return _PLAIN.get(func, func)(*args, **(kwargs or {}))


def layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5, cudnn_enable: bool = True,  # noqa: ARG001 — torch.layer_norm passes it
) -> Tensor:  # fmt: skip
    """(x − mean)/√(var + eps)·weight + bias over the last dimensions."""
    y = _standardise(x, tuple(range(-len(normalized_shape), 0)), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def instance_norm(
    x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x − mean)/√(var + eps)·weight + bias over the spatial dimensions of every channel."""
    if not use_input_stats:  # running statistics: an affine map, which every kernel gets right
        return F.instance_norm(
            x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        )
    y = _standardise(x, tuple(range(2, x.ndim)), eps)
    channels = (1, -1, *[1] * (x.ndim - 2))
    y = y if weight is None else y * weight.view(channels)
    return y if bias is None else y + bias.view(channels)


def _standardise(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    centred = x - x.mean(dims, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps)


_PLAIN: dict[Callable, Callable] = {
    F.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    F.instance_norm: instance_norm,
}


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
    """Inspects every kernel that runs, of modules and of functional calls."""

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
    """A BatchNorm kernel in training mode."""
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


PIECEWISE_LINEAR = (
    nn.Linear, nn.Identity, nn.Flatten, nn.Unflatten, nn.ReLU, nn.LeakyReLU, nn.PReLU,
    nn.ReLU6, nn.Hardtanh, nn.Threshold, nn.Softshrink, nn.Hardshrink,
    nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd,
    nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd, nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.modules.padding._ConstantPadNd, nn.modules.padding._ReflectionPadNd,
    nn.modules.padding._ReplicationPadNd, nn.modules.padding._CircularPadNd,
    nn.Upsample, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.Fold, nn.Unfold,
)  # fmt: skip
"""torch's layers that are linear in their input, piece by piece."""

NO_LAYERS = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict,
    nn.modules.loss._Loss,
)  # fmt: skip
"""Held by networks without a part in the outputs: empty containers, and what trains them."""


def bending_layer(model: object) -> str | None:
    """The first layer of torch's own that is not piecewise linear, or None."""
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    for name, module in named:
        layer = type(module).__module__.startswith("torch.nn.modules")  # nn.utils: of weights
        leaf = not any(module.children())
        if leaf and layer and not isinstance(module, PIECEWISE_LINEAR + NO_LAYERS):
            return f"{place(name)} ({type(module).__name__})"
    return None


@torch.enable_grad()
def curvature_seen(f: Probed, x: Tensor) -> bool | None:
    """Whether the outputs have a Hessian at x, along one direction and for one mix of outputs.

    x: (B, *). For a network of ReLUs and affine maps the answer is zero to the last bit; a smooth
    operation anywhere makes it non-zero at almost every x. None if there is nothing to see: the
    outputs do not move with x here, or do so linearly, or autograd has no second derivative.
    """
    generator = torch.Generator(device=x.device).manual_seed(0)
    x = x[:4].detach().requires_grad_()
    with torch.autocast(x.device.type, enabled=False), plain_kernels():
        outputs = Watched(f.model, "reverse", graph=False)(x.clone())
    mix = torch.randn(outputs.shape, generator=generator, device=x.device).to(outputs.dtype)
    (gradient,) = torch.autograd.grad((outputs * mix).sum(), x, create_graph=True)
    if not gradient.requires_grad or not bool(gradient.any()):
        return None
    v = torch.randn(x.shape, generator=generator, device=x.device).to(x.dtype)
    (bend,) = torch.autograd.grad((gradient * v).sum(), x, allow_unused=True)
    return None if bend is None else bool(bend.any())


def check_piecewise_linear(f: Probed, x: Tensor) -> None:
    """Raise, naming the layer if one is known to bend, unless the network is piecewise linear."""
    where = bending_layer(f.model)
    if where is None and not curvature_seen(f, x):
        return
    where = where or f"an operation in {type(f.model).__name__}"
    raise UnsupportedLayer(
        "backend='piecewise_linear' leaves out the curvature of the network, and "
        f"{where} has some. Use backend='difference' or 'reverse'"
    )


BRIGHT = 10.0  # more than any usual normalisation makes of pixels


def check_inputs(x: Tensor, s: Tensor | None, finite: bool = True) -> None:
    """Raise unless x and s are (finite) floats of one shape and s carries no graph."""
    check_tensor("x", x)
    if not x.is_floating_point():
        raise ValueError(f"x should be floating point, images scaled to [0, 1]; got {x.dtype}")
    if x.ndim < 2 or not len(x):
        raise ValueError(f"x should be a batch of inputs, (B, *); got shape {tuple(x.shape)}")
    if s is not None:
        _check_score(s, x)
    highest = float(x.detach().max()) if finite and x.ndim == 4 else 0.0
    if highest > BRIGHT:
        warnings.warn(
            f"the images go up to {highest:g}: λ and scores are for pixels in [0, 1]; divide bytes "
            "by 255, and normalise inside the model",
            stacklevel=3,
        )
    for name, tensor in (("x", x), ("the score s", s)) if finite else ():
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise ValueError(f"{name} should be finite; {bad} of {tensor.numel()} entries are not")


def _check_score(s: Tensor, x: Tensor) -> None:
    if not isinstance(s, Tensor):
        raise ValueError(
            f"the score s should be a tensor like x, such as score(x); got {type(s).__name__}"
        )
    if not s.is_floating_point():
        raise ValueError(f"the score s should be floating point; got {s.dtype}")
    if s.shape != x.shape or s.device != x.device:
        raise ValueError(
            f"the score s should have the shape and device of x, {tuple(x.shape)} on {x.device}; "
            f"got {tuple(s.shape)} on {s.device}"
        )
    if s.requires_grad:
        raise ValueError("the score s requires grad; it is a constant of the penalty: s.detach()")


def check_tensor(name: str, given: object) -> None:
    """Raise for anything but a tensor."""
    if not isinstance(given, Tensor):
        raise ValueError(f"{name} should be a tensor; got {type(given).__name__}")


def check_labels(y: Tensor | None, x: Tensor) -> None:
    """Raise unless there is one label for each input."""
    if y is not None and (y.ndim == 0 or len(y) != len(x)):
        raise ValueError(
            f"y should hold a label for each of the {len(x)} inputs; got shape {tuple(y.shape)}"
        )


def check_options(
    operator: str, backend: str, probes: int, step: float | None, chunk: int | None
) -> None:
    """Raise for an option that does not exist, saying which do."""
    check_choice("operator", operator, get_args(Operator))
    check_choice("backend", backend, ("auto", *get_args(Backend)))
    check_count("probes", probes)
    if chunk is not None:
        check_count("chunk", chunk)
    if step is not None and not 0 < step < math.inf:
        raise ValueError(f"step should be positive and finite; got {step}")


def check_count(name: str, given: object) -> None:
    """Raise unless `given` is a whole number of at least 1."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"{name} should be a whole number of at least 1; got {given!r}")


def check_choice(name: str, given: object, choices: tuple[str, ...]) -> None:
    """Raise unless `given` is one of `choices`."""
    if given not in choices:
        raise ValueError(f"{name} should be one of {', '.join(map(repr, choices))}; got {given!r}")
