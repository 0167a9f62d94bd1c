"""Checks of inputs, options and layers whose derivatives are wrong; each raises an error."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from taser._runtime import warn_user
from taser.probes import Probed

from ._model_state import is_compiled

Backend = Literal["difference", "reverse", "piecewise_linear", "exact"]
Operator = Literal["langevin", "first_order"]
Distribution = Literal["rademacher", "gaussian"]

COMPARED = 4  # examples on which two computations of f are compared
TOLERANCE = 1e-3


class UnsupportedLayer(ValueError):
    """A layer that this backend cannot differentiate; the message names a backend that works."""


def check_layers(model: Callable, backend: Backend = "difference") -> None:
    """Raise for modules and parameters whose derivatives by `backend` would be wrong."""
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    for name, module in named:
        kind, second = type(module), backend != "difference"
        problem = None
        if isinstance(module, torch.jit.ScriptModule):
            problem = (
                "is scripted, so that its BatchNorm and its mode cannot be set: pass the module "
                "that torch.jit was given"
            )
        elif kind.__module__.startswith("torch.") and ".quantized" in kind.__module__:
            problem = "is quantised, which has no gradient: pass the model in float32"
        elif second and is_compiled(module):
            problem = (
                f"is compiled, and torch.compile has no double backward (pytorch#91469), which "
                f"backend={backend!r} needs. Use backend='difference', or pass the module that was "
                "compiled (its ._orig_mod)"
            )
        elif second and kind.__name__.startswith(("FSDP", "FullyShardedDataParallel")):
            problem = (
                f"is sharded by FSDP, which frees parameters that backend={backend!r} needs for "
                "its second derivative. Use backend='difference'"
            )
        for parameter in module.parameters(recurse=False):
            if parameter.dtype in (torch.float16, torch.bfloat16):
                problem = (
                    f"has parameters in {parameter.dtype}: derivatives of the input get lost in "
                    "its rounding. Keep them in float32; autocast around the loop is fine"
                )
        if problem:
            raise UnsupportedLayer(f"{place(name)} {problem}")


def check_gradient(value: Tensor, model: nn.Module) -> None:
    """Raise if autograd is on and the penalty has no gradient in the parameters."""
    wanted = torch.is_grad_enabled() and any(p.requires_grad for p in model.parameters())
    if wanted and not value.requires_grad:
        raise ValueError(
            "the penalty has no gradient in the model's parameters: does its forward detach the "
            "outputs, or run under torch.no_grad?"
        )


def warn_of_tf32(model: Callable) -> None:
    """Warn if convolutions may run in TF32, whose rounding a difference magnifies."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    if torch.backends.cudnn.allow_tf32 and any(p.is_cuda for p in parameters):
        warn_user(
            "convolutions may run in TF32, whose rounding a second difference magnifies; set "
            "torch.backends.cudnn.allow_tf32 = False, or use another backend"
        )


def check_coupling(f: Probed, x: Tensor) -> None:
    """Raise if an example's output changes with the other examples of its batch, x: (B, *).

    This finds hand-written batch statistics. Networks that draw random numbers are not checked.
    """
    few, alone = x[:COMPARED], x[:1].expand_as(x[:COMPARED])
    with torch.no_grad():
        together, again, apart = (
            Probed(f.model, f.probe, None if f.y is None else f.y[:labels])(points.clone())
            for points, labels in ((few, len(few)), (few, len(few)), (alone, 1))
        )
    same = (apart - together)[0].abs() <= TOLERANCE * (1 + together.abs().max())  # not of NaN
    if torch.equal(together, again) and not bool(same):
        raise UnsupportedLayer(
            "the model's output for an example depends on the other examples of the batch, as with "
            "statistics over dimension 0 that its forward computes, so residuals are not per "
            "example. Use a norm of torch, such as nn.BatchNorm2d or nn.GroupNorm"
        )


def place(layer: str) -> str:
    """A module's dotted name as errors show it."""
    return f"layer '{layer}'" if layer else "the model"


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Compute LayerNorm, InstanceNorm and attention by operations whose derivatives are right.

    The fused LayerNorm and InstanceNorm have a silently wrong third derivative (up to 70 % off in
    the parameter gradient of a Laplacian: pytorch#186256, #175754), and the fused attention has
    no second derivative. Only calls inside this context are replaced.
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
    bias: Tensor | None = None, eps: float = 1e-5, *_: Any,
) -> Tensor:  # fmt: skip
    """(x − mean)/√(var + eps)·weight + bias over the last dimensions, a GroupNorm of one group."""
    weight, bias = (None if each is None else each.flatten() for each in (weight, bias))
    flat = x.reshape(-1, math.prod(normalized_shape))
    return torch.group_norm(flat, 1, weight, bias, eps).view_as(x)


def instance_norm(
    x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None,
    weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x − mean)/√(var + eps)·weight + bias of every channel, a GroupNorm of as many groups."""
    if use_input_stats:
        return torch.group_norm(x, x.shape[1], weight, bias, eps)
    # With running statistics it is an affine map, which the kernel differentiates right.
    return F.instance_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)


_PLAIN: dict[Callable, Callable] = {
    F.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    F.instance_norm: instance_norm,
}


class Watched:
    """A function whose first call is inspected for kernels that `backend` cannot differentiate."""

    kinked = False  # whether the first derivative of some kernel jumps

    def __init__(self, function: Callable[[Tensor], Tensor], backend: Backend, graph: bool) -> None:
        self.function = function
        self.watch: KernelWatch | None = KernelWatch(backend, graph)

    def __call__(self, x: Tensor) -> Tensor:
        if self.watch is None:
            return self.function(x)
        watch, self.watch = self.watch, None
        with _layer_names(self.function, watch), watch:
            output = self.function(x)
        self.kinked = watch.kinked
        return output


KINKS = (
    "relu", "relu6", "threshold", "leaky_relu", "_prelu_kernel", "rrelu", "rrelu_with_noise",
    "hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink", "abs", "clamp",
    "clamp_min", "clamp_max", "maximum", "minimum", "max", "amax",
)  # fmt: skip
"""Kernels whose first derivative jumps, besides max-pooling."""


class KernelWatch(TorchDispatchMode):
    """Inspects every kernel that runs, from modules and functional calls."""

    def __init__(self, backend: Backend, graph: bool) -> None:
        super().__init__()
        self.backend = backend
        self.graph = graph  # whether the residual needs parameter gradients
        self.layers: list[str] = []
        self.kinked = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        problem = self.problem(func, args)
        if problem:
            layer = self.layers[-1] if self.layers else "f"
            raise UnsupportedLayer(f"{place(layer)} {problem}")
        name = kernel_name(func).rstrip("_")
        if self.kinked or not (name in KINKS or "max_pool" in name):
            return func(*args, **(kwargs or {}))
        before = args[0].clone()  # the kernel may work in place
        output = func(*args, **(kwargs or {}))
        # A clamp that changes no value is no kink: of pixels to [0, 1], of a norm away from zero.
        self.kinked = not isinstance(output, Tensor) or not torch.equal(before, output)
        return output

    def problem(self, func: Any, args: tuple) -> str | None:
        """Why this kernel cannot be differentiated, or None."""
        name = kernel_name(func)
        if _uses_batch_statistics(func, args):
            if args[0].shape[0] > 1:
                return (
                    "normalises by the statistics of the batch, which couples the examples. Put it "
                    "in eval mode, as taser.SteinPenalty does with a module; without running "
                    "statistics use another norm, such as GroupNorm"
                )
            name = "native_instance_norm"  # it folds the batch into the channels
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


def kernel_name(func: Any) -> str:
    """The name without namespace and overload, such as "relu"."""
    return func.name().removeprefix("aten::").partition(".")[0]


def _uses_batch_statistics(func: Any, args: tuple) -> bool:
    """Whether this is a BatchNorm kernel in training mode."""
    name = func.name()
    if "batch_norm" not in name or "backward" in name:
        return False
    flags = [argument for argument in args if isinstance(argument, bool)]
    return flags[0] if flags else "with_update" in name or "stats" in name


def _draws_random_numbers(func: Any, args: tuple) -> bool:
    """Whether this kernel draws random numbers, as dropout does in training mode."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = {argument.name: argument.default_value for argument in func._schema.arguments}
    given.update(zip(given, args, strict=False))
    rests = given.get("dropout_p", 1.0) == 0  # attention
    return not (rests or given.get("train", given.get("training", True)) is False)


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
"""Layers of torch that are piecewise linear in their input."""

NO_LAYERS = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict,
    nn.modules.loss._Loss,
)  # fmt: skip
"""Modules that do not compute outputs: containers and losses."""


def curved_layer(model: object) -> str | None:
    """The first layer of torch.nn that is not piecewise linear, or None."""
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    for name, module in named:
        layer = type(module).__module__.startswith("torch.nn.modules")  # not nn.utils, for weights
        leaf = not any(module.children())
        if leaf and layer and not isinstance(module, PIECEWISE_LINEAR + NO_LAYERS):
            return f"{place(name)} ({type(module).__name__})"
    return None


@torch.enable_grad()
def is_curved(f: Probed, x: Tensor) -> bool | None:
    """Whether the outputs have a Hessian at x, along one direction and for one mix of outputs.

    x: (B, *). For a network of ReLUs and affine maps it is exactly zero; any smooth operation makes
    it non-zero at almost every x. None if that cannot be decided: near x the outputs are constant
    or linear, or autograd has no second derivative.
    """
    generator = torch.Generator(device=x.device).manual_seed(0)
    x = x[:COMPARED].detach().requires_grad_()
    with torch.autocast(x.device.type, enabled=False), plain_kernels():
        outputs = Watched(f.model, "reverse", graph=False)(x.clone())
    if not isinstance(outputs, Tensor):
        return True  # outputs are not a tensor; assume curvature
    mix = torch.randn(outputs.shape, generator=generator, device=x.device).to(outputs.dtype)
    (gradient,) = torch.autograd.grad((outputs * mix).sum(), x, create_graph=True)
    if not gradient.requires_grad or not bool(gradient.any()):
        return None
    v = torch.randn(x.shape, generator=generator, device=x.device).to(x.dtype)
    (product,) = torch.autograd.grad((gradient * v).sum(), x, allow_unused=True)
    return None if product is None else bool(product.any())


def has_kinks(model: Callable, x: Tensor) -> bool:
    """Whether the first derivative of the model jumps, as a ReLU's does. x: (B, *)."""
    watched = Watched(model, "difference", graph=False)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        watched(x[:COMPARED].clone())
    return watched.kinked


def check_piecewise_linear(f: Probed, x: Tensor) -> None:
    """Raise, naming the layer if it is in torch.nn, unless the network is piecewise linear."""
    where = curved_layer(f.model)
    if where is None and not is_curved(f, x):
        return
    where = where or f"an operation in {type(f.model).__name__}"
    raise UnsupportedLayer(
        "backend='piecewise_linear' leaves out the curvature of the network, and "
        f"{where} has some. Use backend='difference' or 'reverse'"
    )


BRIGHT = 10.0  # larger than normalised pixels ever are


def check_inputs(x: Tensor, s: Tensor | None, first: bool = True) -> None:
    """Raise unless x and s are finite floats of one shape and s carries no graph.

    On an accelerator, which would have to wait, only the first call is checked for NaN.
    """
    _check_floating("x", x, "images scaled to [0, 1]")
    if x.ndim < 2 or not len(x):
        raise ValueError(f"x should be a batch of inputs, (B, *); got shape {tuple(x.shape)}")
    if s is not None:
        _check_floating("the score s", s, "such as score(x)")
        if s.shape != x.shape or s.device != x.device:
            raise ValueError(
                f"the score s should have the shape and device of x, {tuple(x.shape)} on "
                f"{x.device}; got {tuple(s.shape)} on {s.device}"
            )
        if s.requires_grad:
            raise ValueError(
                "the score s requires grad; it is a constant of the penalty: s.detach()"
            )
    for name, tensor in {"x": x, "the score s": x if s is None else s}.items():
        read = first or tensor.device.type == "cpu"
        if read and (bad := int((~torch.isfinite(tensor)).sum())):
            raise ValueError(f"{name} should be finite; {bad} of {tensor.numel()} entries are not")


def _check_floating(name: str, given: Tensor, wanted: str) -> None:
    if not given.is_floating_point():
        raise ValueError(f"{name} should be floating point, {wanted}; got {given.dtype}")


def check_labels(y: Tensor | None, x: Tensor) -> None:
    """Raise unless there is one label for each input."""
    if y is not None and (y.ndim == 0 or len(y) != len(x)):
        raise ValueError(
            f"y should hold a label for each of the {len(x)} inputs; got shape {tuple(y.shape)}"
        )


def check_options(
    operator: str, backend: str, probes: int, step: float | None, chunk: int | None
) -> None:
    """Raise for an invalid option, listing the valid ones."""
    check_choice("operator", operator, get_args(Operator))
    check_choice("backend", backend, ("auto", *get_args(Backend)))
    check_count("probes", probes)
    if chunk is not None:
        check_count("chunk", chunk)
    if step is not None and not 0 < step < math.inf:
        raise ValueError(f"step should be positive and finite; got {step}")


def spread(x: Tensor) -> Tensor:
    """The root mean square deviation of x, (B, *), from the mean of the batch, a scalar.

    For one example, from the mean of its entries; at least 1 % of the largest entry; never zero.
    """
    x = x.detach().flatten(1)
    mean = x.mean(0) if len(x) > 1 else x.mean()
    found = torch.maximum((x - mean).square().mean().sqrt(), x.abs().amax() / 100)
    return torch.where(found > 0, found, torch.ones_like(found))


def check_step(step: float | None, x: Tensor, operator: Operator) -> None:
    """Raise for a step so short that rounding dominates, or so long that it leaves the data."""
    if step is None:
        return
    size = float(spread(x))
    smallest = torch.finfo(x.dtype).eps ** (0.5 if operator == "langevin" else 1.0)
    if not smallest < step / size < 100:
        raise ValueError(
            f"step={step:g} is out of range for inputs with standard deviation {size:.2g}: it "
            f"should lie between {smallest * size:.1g} and {100 * size:.1g}; None chooses one"
        )


def check_count(name: str, given: int) -> None:
    """Raise unless `given` is a whole number of at least 1."""
    if given < 1:
        raise ValueError(f"{name} should be a whole number of at least 1; got {given}")


def check_choice(name: str, given: object, choices: tuple[str, ...]) -> None:
    """Raise unless `given` is one of `choices`."""
    if given not in choices:
        raise ValueError(f"{name} should be one of {', '.join(map(repr, choices))}; got {given!r}")
