"""BatchNorm in the penalty's pass: the loss's batch statistics, held fixed as the input varies.

:class:`SharedPass` records them in the loss's own forward, with the outputs.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from typing import Any, ClassVar, Literal, Self
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from taser._runtime import full_precision
from taser.probes import Probed

from ._checks import COMPARED, TOLERANCE, UnsupportedLayer
from ._model_state import (
    any_compiled,
    check_module,
    eval_mode,
    restored_buffers,
    without_checkpointing,
)

Statistics = Literal["auto", "running"]
BATCH_NORM = signature(F.batch_norm)


@contextmanager
def penalty_mode(
    model: nn.Module, x: Tensor, shared: "SharedPass", which: Statistics = "auto"
) -> Iterator[None]:
    """Eval mode in full precision, with BatchNorm by fixed batch statistics.

    They are those of the loss's first forward, if `shared` recorded it: of x, or of the attacked
    points where the loss evaluates only these, as PGD training does. Else those of x, (B, *).
    """
    x = full_precision(x)
    with (
        torch.autocast(x.device.type, enabled=False),
        without_checkpointing(),
        restored_buffers(model, kept=(_BatchNorm,)),  # known by their identity, and not changed
        instance_statistics(model, which),
        batch_statistics(model, x, which, shared.statistics),
        eval_mode(model),
    ):
        yield


@contextmanager
def instance_statistics(model: nn.Module, which: Statistics) -> Iterator[None]:
    """Let InstanceNorms in training mode use each example's statistics, as they do in the loss.

    To be entered inside of restored_buffers, which gives them their running statistics back.
    """
    norms = [p for p in model.modules() if isinstance(p, _InstanceNorm)]
    norms = [n for n in norms if n.training and n.track_running_stats and which == "auto"]
    try:
        for norm in norms:
            norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


@contextmanager
def batch_statistics(
    model: nn.Module, x: Tensor, which: Statistics, recorded: "RecordedStatistics | None" = None
) -> Iterator[None]:
    """Let BatchNorms that are in training mode use the statistics of x, (B, *), held fixed.

    Mean and variance stay functions of the weights and become constants of the input. So each
    example's derivatives are its own, and the parameter gradient is right where the loss is
    invariant to the scale of a convolution before a BatchNorm; with running statistics it would
    shrink such weights to no effect.

    To be entered outside autocast and before eval mode. "auto" does this for BatchNorms in training
    mode, "running" never. It costs one more forward unless the statistics were recorded in a pass
    of the loss. A compiled model runs uncompiled, because its graph does not call the function that
    is replaced here.
    """
    norms = [] if which == "running" else list(_training_norms(model))
    if not norms:
        yield
        return
    keys = {id(norm.running_mean) for norm in norms}
    with torch.compiler.set_stance("force_eager") if any_compiled(model) else nullcontext():
        if recorded is not None and recorded.complete_for(keys):
            statistics = recorded.statistics
        else:
            measured = _MeasuredStatistics(keys)
            with eval_mode(model), measured:
                model(x.clone())  # a copy: the model may begin with an operation in place
            statistics = measured.statistics
        with _FixedStatistics(statistics):
            yield


def _training_norms(model: nn.Module) -> Iterator[_BatchNorm]:
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.training and module.running_mean is not None:
            yield module


def _bound(args: Sequence, kwargs: dict | None) -> tuple:
    """x, running_mean, running_var, weight, bias, training, momentum, eps of F.batch_norm."""
    bound = BATCH_NORM.bind(*args, **(kwargs or {}))
    bound.apply_defaults()
    return tuple(bound.arguments.values())


def mean_and_variance(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel, (C,) both."""
    var, mean = torch.var_mean(x, (0, *range(2, x.ndim)), correction=0)
    return mean, var


class _FixedStatistics(TorchFunctionMode):
    """BatchNorms of these running means normalise by fixed statistics instead."""

    def __init__(self, statistics: dict[int, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.statistics = statistics

    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None
    ) -> Any:
        """γ(x − μ)/√(v + ε) + β, by the fused kernel of eval mode.

        That kernel has no gradient to μ and v. With μ̄ and v̄ their values, held fixed, the same is
        γ'(x − μ̄)/√(v̄ + ε) + β' with γ' = γ√((v̄ + ε)/(v + ε)), β' = β + γ'(μ̄ − μ)/√(v̄ + ε), whose
        gradients go on to μ and v at the price of a few numbers for each channel.
        """
        if func is not F.batch_norm or id(args[1]) not in self.statistics:
            return func(*args, **(kwargs or {}))
        x, running_mean, _, weight, bias, _, _, eps = _bound(args, kwargs)
        mean, var = self.statistics[id(running_mean)]
        fixed_mean, fixed_var = mean.detach(), var.detach()
        scale = torch.sqrt((fixed_var + eps) / (var + eps))
        scale = scale if weight is None else weight * scale
        shift = (fixed_mean - mean) * scale * torch.rsqrt(fixed_var + eps)
        shift = shift if bias is None else bias + shift
        return F.batch_norm(x, fixed_mean, fixed_var, scale, shift, False, 0.0, eps)


class _MeasuredStatistics(_FixedStatistics):
    """Measures the statistics of each norm's input, and normalises by them."""

    def __init__(self, norms: set[int]) -> None:
        super().__init__({})
        self.norms = norms

    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None
    ) -> Any:
        if func is F.batch_norm and (key := id(args[1])) in self.norms:
            if key in self.statistics:
                raise UnsupportedLayer(
                    f"a BatchNorm of {len(args[1])} channels is used twice in one pass, so that it "
                    "has two means and variances. Give each place a norm of its own, or use "
                    "batchnorm='running'"
                )
            self.statistics[key] = mean_and_variance(full_precision(args[0]))
        return super().__torch_function__(func, types, args, kwargs)


class RecordedStatistics(TorchFunctionMode):
    """Records mean and variance of each BatchNorm's input in a pass that the loss makes.

    The first pass inside the context counts. The statistics keep that pass's graph, so that one
    backward of loss and penalty together serves both.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.norms = {id(norm.running_mean) for norm in _training_norms(model)}
        self.statistics: dict[int, tuple[Tensor, Tensor]] = {}
        self.uses: Counter[int] = Counter()
        self.passes = 0
        self._hook: RemovableHandle | None = None
        self._graph = True

    active: ClassVar[int] = 0  # contexts that are open: an explicit SharedPass has precedence

    def complete_for(self, norms: set[int]) -> bool:
        """Whether every pass used each of these norms once."""
        return norms <= self.statistics.keys() and all(
            self.uses[norm] == self.passes for norm in norms
        )

    def __enter__(self) -> Self:
        self._graph = torch.is_grad_enabled()
        self._hook = self.model.register_forward_pre_hook(self._count)
        RecordedStatistics.active += 1
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        RecordedStatistics.active -= 1
        if self._hook is not None:
            self._hook.remove()

    def _count(self, _module: nn.Module, _inputs: object) -> None:
        self.passes += 1

    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None
    ) -> Any:
        if func is F.batch_norm and id(args[1]) in self.norms and not self._will_be_recomputed():
            self.uses[id(args[1])] += 1
            if self.uses[id(args[1])] == 1:
                return self._record(*_bound(args, kwargs))
        return func(*args, **(kwargs or {}))

    def _will_be_recomputed(self) -> bool:
        """Whether this is inside of torch.utils.checkpoint: without a graph, or with its hooks."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return torch.is_grad_enabled() != self._graph or hooks is not None

    def _record(
        self, x: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor | None,
        bias: Tensor | None, training: bool, momentum: float, eps: float,
    ) -> Tensor:  # fmt: skip
        if training and x.dtype == running_mean.dtype and x.numel() > x.shape[1]:
            y, mean, var = BatchNormWithStatistics.apply(
                x, running_mean, running_var, weight, bias, momentum, eps
            )
        else:  # in half precision the layer's own statistics are too rough
            mean, var = mean_and_variance(full_precision(x))
            y = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        self.statistics[id(running_mean)] = mean, var
        return y


class BatchNormWithStatistics(torch.autograd.Function):
    """y = γ(x − μ)/√(v + ε) + β, and μ, v with gradients: x (B, C, *), the others (C,).

    The fused kernel computes μ and v but does not return them with a gradient; computing them
    again would read every activation once more, forwards and backwards. Running statistics are
    updated as usual.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor | None,
        bias: Tensor | None, momentum: float, eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        y, mean, invstd = torch.native_batch_norm(
            x, weight, bias, running_mean, running_var, True, momentum, eps
        )
        ctx.save_for_backward(x, weight, bias, mean, invstd)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return y, mean.clone(), invstd.pow(-2) - eps

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, invstd = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[i] for i in (0, 3, 4)]
        if torch.is_grad_enabled():  # a double backward
            of_x, of_weight, of_bias = _with_graph((x, weight, bias), ctx.eps, gradients, wanted)
        else:
            of_x, of_weight, of_bias = _fused(x, weight, mean, invstd, ctx.eps, gradients, wanted)
        return of_x, None, None, of_weight, of_bias, None, None


Gradients = tuple[Tensor | None, ...]


def _fused(
    x: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor, eps: float,
    gradients: Gradients, wanted: list[bool],
) -> Gradients:  # fmt: skip
    """The kernel's own backward, with ∂μ/∂x = 1/n and ∂v/∂x = 2(x − μ)/n for n values a channel."""
    of_y, of_mean, of_var = gradients
    of_x = of_weight = of_bias = None
    if of_y is not None:
        of_x, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            of_y, x, weight, None, None, mean, invstd, True, eps, wanted
        )
    if wanted[0] and (of_mean is not None or of_var is not None):
        n, shape = x.numel() // x.shape[1], (1, -1, *[1] * (x.ndim - 2))
        zero = torch.zeros_like(mean)
        slope = 2 / n * (zero if of_var is None else of_var)
        start = (zero if of_mean is None else of_mean) / n - slope * mean
        more = torch.addcmul(start.view(shape), x, slope.view(shape))
        of_x = more if of_x is None else of_x.add_(more)
    return of_x, of_weight, of_bias


def _with_graph(
    inputs: Gradients, eps: float, gradients: Gradients, wanted: list[bool]
) -> list[Tensor | None]:
    """The same backward from operations that torch can differentiate again."""
    x, weight, bias = inputs
    assert x is not None
    outputs = (F.batch_norm(x, None, None, weight, bias, True, 0.0, eps), *mean_and_variance(x))
    present = [i for i, gradient in enumerate(gradients) if gradient is not None]
    own = [t for t, w in zip(inputs, wanted, strict=True) if w and t is not None]
    found = iter(
        torch.autograd.grad(
            [outputs[i] for i in present], own, [gradients[i] for i in present],
            create_graph=True, allow_unused=True,
        )
    )  # fmt: skip
    return [next(found) if w else None for w in wanted]


class SharedPass:
    """What the loss has computed already: BatchNorm's statistics, and the outputs at x.

        with taser.SharedPass(model) as shared:
            outputs = shared.outputs = model(x)
        loss = cross_entropy(outputs, y) + lam * penalty(model, x, y, s, shared=shared)

    The penalty then makes one forward less for the statistics and one less for f(x). Loss and
    penalty share a graph, so they have to share one `backward`.

    The outputs have to be those of the very x that the penalty gets, row for row. Outputs are not
    used if the pass drew random numbers (dropout), if they are in half precision (do not upcast
    them), or if the model's outputs in eval mode differ: the first call compares a few. Weights
    that changed since are refused. Of a compiled model only the outputs are shared.
    """

    def __init__(self, model: Callable | None = None) -> None:
        module = None if model is None else check_module(model)
        compiled = module is None or any_compiled(module)
        self.statistics = None if compiled else RecordedStatistics(module)  # type: ignore[arg-type]
        self.outputs: Tensor | None = None
        self.layers: list[tuple] = []  # the model's submodules and their modes in the loss
        self.random = False  # whether the pass drew random numbers
        self._weights = [] if module is None else list(module.parameters())
        self._versions = self._count_changes()
        self._rng_before: list[Tensor] = []

    def __repr__(self) -> str:
        outputs = None if self.outputs is None else tuple(self.outputs.shape)
        recorded = "with" if self.statistics is not None else "without"
        return f"SharedPass({recorded} BatchNorm's statistics, outputs={outputs})"

    def __enter__(self) -> Self:
        self._versions = self._count_changes()
        self._rng_before = self._rng_states()
        if self.statistics is not None:
            self.statistics.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.statistics is not None:
            self.statistics.__exit__(*error)
        self.random = not all(map(torch.equal, self._rng_before, self._rng_states()))

    @property
    def at_present_weights(self) -> bool:
        """Whether the weights are those that the pass was made with."""
        return self._count_changes() == self._versions

    def _count_changes(self) -> int:
        """How often the weights have been changed in place, as an optimiser does."""
        return sum(weight._version for weight in self._weights)

    def _rng_states(self) -> list[Tensor]:
        devices = {weight.device for weight in self._weights if weight.is_cuda}
        states = [torch.cuda.get_rng_state(device) for device in sorted(devices, key=str)]
        return [torch.get_rng_state(), *states]

    def check(self, x: Tensor) -> None:
        """Raise unless there is an output for each input, at the present weights."""
        if self.outputs is not None and len(self.outputs) != len(x):
            raise ValueError(
                f"the shared pass was made at other inputs: it has {len(self.outputs)} outputs for "
                f"{len(x)} inputs"
            )
        if not self.at_present_weights:
            raise ValueError(
                "the shared pass was made at other weights: run the model again after each step of "
                "the optimiser"
            )

    def rows(self, rows: Tensor) -> "SharedPass":
        """For a part of the batch; the statistics are those of the whole."""
        return self._with_outputs(None if self.outputs is None else self.outputs[rows])

    def without_outputs(self) -> "SharedPass":
        """For other points than x."""
        return self._with_outputs(None)

    def _with_outputs(self, outputs: Tensor | None) -> "SharedPass":
        shared = SharedPass()
        shared.statistics, shared.outputs = self.statistics, outputs
        shared.layers, shared.random = self.layers, self.random
        return shared

    def matches(self, f: Probed, x: Tensor) -> bool | None:
        """Whether the outputs are f's own, by a few examples.

        None if that cannot be decided: a network whose last layer is zero has equal outputs.
        """
        values, few = self.values(f, x), slice(COMPARED)
        if values is None:
            return False
        labels = None if f.y is None else f.y[few]
        with torch.no_grad():  # of a copy: the model may begin with an operation in place
            outputs = f.model(x[few].clone())
            own = f.probe(outputs, labels)
            if bool((own - values[few]).abs().max() > TOLERANCE * (1 + own.abs().max())):
                return False
            return True if len(own) < 2 or bool((outputs != outputs[0]).any()) else None

    def values(self, f: Probed, x: Tensor) -> Tensor | None:
        """f(x), (B,), with its graph; None if the outputs cannot be used at the precision of x."""
        if self.outputs is None or self.random or self.outputs.dtype != x.dtype:
            return None  # checked before the probe, which takes outputs out of half precision
        return f.probe(self.outputs, f.y)


class PassRecorder:
    """Records the loss's forwards of a model by hooks, so that the penalty can share them.

    Recorded is a forward in training mode, with gradients, of one tensor that requires none. A
    backward through its outputs frees its graph and ends its use. Copies of the model, pickled or
    deep, are not recorded.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = ref(model)
        self._recording: SharedPass | None = None
        self._last: tuple[Tensor, int, SharedPass] | None = None
        self._hooks = [
            model.register_forward_pre_hook(_Hook(self._begin)),
            model.register_forward_hook(_Hook(self._end), always_call=True),
        ]

    def remove(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def shared_pass(self, model: nn.Module, x: Tensor) -> SharedPass | None:
        """The recorded forward of this very x at the present weights, once; None without one."""
        last, self._last = self._last, None
        if last is None or self.model() is not model:
            return None
        recorded, version, shared = last
        same = recorded is x and x._version == version and shared.at_present_weights
        return shared if same and not shared.random else None

    def _begin(self, model: nn.Module, inputs: tuple) -> None:
        self._last = None
        x = inputs[0] if len(inputs) == 1 else None
        wanted = model.training and torch.is_grad_enabled() and self.model() is model
        wanted = wanted and self._recording is None and not RecordedStatistics.active
        if wanted and isinstance(x, Tensor) and not x.requires_grad:
            self._recording = SharedPass(model).__enter__()
            if self._recording.statistics is not None:
                self._recording.statistics.passes = 1  # its own hook does not count this forward

    def _end(self, _model: nn.Module, inputs: tuple, outputs: object) -> None:
        shared, self._recording = self._recording, None
        if shared is None:
            return
        shared.__exit__(None, None, None)
        if isinstance(outputs, Tensor) and outputs.requires_grad:
            shared.outputs = outputs
            outputs.register_hook(self._forget)
            self._last = inputs[0], inputs[0]._version, shared

    def _forget(self, _gradient: Tensor) -> None:
        self._last = None


class _Hook:
    """A hook that does nothing in a copy of the model, nor while torch.compile traces it."""

    def __init__(self, call: Callable | None = None) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> None:
        if self.call is not None and not torch.compiler.is_compiling():
            self.call(*arguments)

    def __deepcopy__(self, _memo: dict) -> "_Hook":
        return _Hook()

    def __reduce__(self) -> tuple:
        return _Hook, ()
