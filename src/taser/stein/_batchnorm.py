"""BatchNorm in the penalty: the loss's batch statistics, held constant in the input.

:class:`SharedPass` records them in the loss's forward, with the outputs.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from typing import Any, ClassVar, Literal, Self
from weakref import ReferenceType, ref

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
KEPT = 4  # forwards that are recorded at a time: their graphs take memory


@contextmanager
def penalty_mode(
    model: nn.Module, x: Tensor, shared: "SharedPass", which: Statistics = "auto"
) -> Iterator[None]:
    """Eval mode in full precision, with BatchNorm by fixed batch statistics.

    The statistics are those of the first forward that `shared` recorded (of x_adv if the loss
    evaluates only x_adv, as PGD training does); without a record, those of x, (B, *).
    """
    x = full_precision(x)
    with (
        torch.autocast(x.device.type, enabled=False),
        without_checkpointing(),
        # BatchNorm buffers keep their identity: they are looked up by id() below. Nothing writes
        # to them here.
        restored_buffers(model, kept=(_BatchNorm,)),
        instance_statistics(model, which),
        batch_statistics(model, x, which, shared),
        eval_mode(model),
    ):
        yield


@contextmanager
def instance_statistics(model: nn.Module, which: Statistics) -> Iterator[None]:
    """Let InstanceNorms in training mode use each example's statistics, as they do in the loss.

    Enter it inside restored_buffers, which restores their running statistics.
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
    model: nn.Module, x: Tensor, which: Statistics, recorded: "SharedPass"
) -> Iterator[None]:
    """Let BatchNorms that are in training mode use the statistics of x, (B, *), held constant.

    Mean and variance stay functions of the weights and become constants in the input, so examples
    are not coupled. The loss does not depend on the scale of a convolution before a BatchNorm. With
    running statistics the penalty could be lowered by shrinking these weights, without changing the
    function.

    Enter it outside autocast and before eval mode. "auto" does this for BatchNorms in training
    mode, "running" never. It costs an extra forward unless the loss's forward was recorded. A
    compiled model runs uncompiled: its graph does not call the function that is replaced here.
    """
    norms = {} if which == "running" else training_norms(model)
    if not norms:
        yield
        return
    with torch.compiler.set_stance("force_eager") if any_compiled(model) else nullcontext():
        if not recorded.complete_for(norms):
            recorded = SharedPass(model, of_loss=False)
            with eval_mode(model), recorded:
                model(x.clone())  # a copy: the model may begin with an operation in place
            twice = [norms[key] for key, uses in recorded.uses.items() if uses > 1]
            if twice:
                raise UnsupportedLayer(
                    f"a BatchNorm of {twice[0].num_features} channels is used twice in one pass, "
                    "so that it has two means and variances. Give each place a norm of its own, or "
                    "use batchnorm='running'"
                )
        with _FixedStatistics(recorded.statistics):
            yield


def training_norms(model: nn.Module) -> dict[int, _BatchNorm]:
    """BatchNorms in training mode with running statistics, keyed by id(running_mean)."""
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.training]
    return {id(norm.running_mean): norm for norm in norms if norm.running_mean is not None}


def _arguments(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None = None, bias: Tensor | None = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> tuple:  # fmt: skip
    """All arguments of a call of F.batch_norm, in its order; signature().bind would be slow."""
    return x, mean, var, weight, bias, training, momentum, eps


def mean_and_variance(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel: (B, C, *) → (C,), (C,)."""
    var, mean = torch.var_mean(x, (0, *range(2, x.ndim)), correction=0)
    return mean, var


class _FixedStatistics(TorchFunctionMode):
    """BatchNorms with these running means normalise by fixed statistics instead."""

    def __init__(self, statistics: dict[int, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.statistics = statistics

    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None
    ) -> Any:
        """γ(x − μ)/√(v + ε) + β, by the fused kernel of eval mode.

        That kernel has no gradient to μ and v. With μ̄ and v̄ their values, held fixed, the same is
        γ'(x − μ̄)/√(v̄ + ε) + β' with γ' = γ√((v̄ + ε)/(v + ε)), β' = β + γ'(μ̄ − μ)/√(v̄ + ε), which
        has gradients in μ and v at the cost of a few numbers for each channel.
        """
        if func is not F.batch_norm or id(args[1]) not in self.statistics:
            return func(*args, **(kwargs or {}))
        x, running_mean, _, weight, bias, _, _, eps = _arguments(*args, **(kwargs or {}))
        mean, var = self.statistics[id(running_mean)]
        fixed_mean, fixed_var = mean.detach(), var.detach()
        scale = torch.sqrt((fixed_var + eps) / (var + eps))
        scale = scale if weight is None else weight * scale
        shift = (fixed_mean - mean) * scale * torch.rsqrt(fixed_var + eps)
        shift = shift if bias is None else bias + shift
        return F.batch_norm(x, fixed_mean, fixed_var, scale, shift, False, 0.0, eps)


def normalised_with_statistics(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None,
    bias: Tensor | None, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y = γ(x − μ)/√(v + ε) + β, and μ, v with gradients: x (B, C, *), the others (C,).

    The fused kernel computes μ and v but does not return them with a gradient; computing them
    again would read every activation once more. Running statistics are updated as usual.
    """
    y, mean, invstd = torch.native_batch_norm(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    mean, var = _WithGradient.apply(x, mean, invstd.detach().pow(-2) - eps)
    return y, mean, var


class _WithGradient(torch.autograd.Function):
    """The given mean and variance of each channel of x, with their gradients in x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        mean = mean.clone()
        ctx.save_for_backward(x, mean)  # the output, so that a second backward reaches it
        return mean, var.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """∂μ/∂x = 1/n and ∂v/∂x = 2(x − μ)/n, for n values a channel."""
        x, mean = ctx.saved_tensors
        n, shape = x.numel() // x.shape[1], (1, -1, *[1] * (x.ndim - 2))
        slope = 2 / n * gradients[1]
        start = gradients[0] / n - slope * mean
        return torch.addcmul(start.view(shape), x, slope.view(shape)), None, None


class SharedPass(TorchFunctionMode):
    """The loss's forward pass for the penalty: BatchNorm's statistics and the outputs at x.

        with taser.SharedPass(model) as shared:
            outputs = shared.outputs = model(x)
        loss = cross_entropy(outputs, y) + lam * penalty(model, x, y, s, shared=shared)

    This saves the penalty one forward for the statistics and one for f(x). The statistics are those
    of the first pass with gradients inside the context: under PGD those of x_adv, as in `taser
    train`, while :meth:`Regulariser.attach` would take those of x. Loss and penalty share a graph:
    call `backward` once, on their sum.

    The outputs have to be those of the penalty's x, row for row. Outputs are not used if the pass
    drew random numbers (dropout), if they are in half precision (do not upcast them), or if the
    model's outputs in eval mode differ: the first call compares a few. Weights that changed since
    raise an error. For a compiled model only the outputs are shared.
    """

    active: ClassVar[int] = 0  # open SharedPass contexts; hooks do not record while one is open

    def __init__(self, model: Callable | None = None, *, of_loss: bool = True) -> None:
        """of_loss: False for the penalty's forward, which must not update running statistics."""
        super().__init__()
        self.model = None if model is None else check_module(model)
        self.of_loss = of_loss
        self.norms: dict[int, _BatchNorm] = {}
        if self.model is not None and not (of_loss and any_compiled(self.model)):
            self.norms = training_norms(self.model)
        self.statistics: dict[int, tuple[Tensor, Tensor]] = {}  # keyed by id(running_mean)
        self.uses: Counter[int] = Counter()
        self.passes = 0
        self.outputs: Tensor | None = None
        self.random = False  # whether the pass drew random numbers
        self._weights = [] if self.model is None else list(self.model.parameters())
        self._versions = self._fingerprint()
        self._rng_before: list[Tensor] = []
        self._hook: RemovableHandle | None = None
        self._outside = _autograd_state()

    def __repr__(self) -> str:
        outputs = None if self.outputs is None else tuple(self.outputs.shape)
        return f"SharedPass(statistics of {len(self.statistics)} BatchNorms, outputs={outputs})"

    def __enter__(self) -> Self:
        self._versions = self._fingerprint()
        self._rng_before = self._rng_states()
        self._outside = _autograd_state()
        if self.norms:
            assert self.model is not None
            self._hook = self.model.register_forward_pre_hook(self._count)
            super().__enter__()
        SharedPass.active += 1
        return self

    def __exit__(self, *error: object) -> None:
        SharedPass.active -= 1
        if self._hook is not None:
            super().__exit__(*error)
            self._hook.remove()
        self.random = not all(map(torch.equal, self._rng_before, self._rng_states()))

    def _count(self, _module: nn.Module, _inputs: object) -> None:
        self.passes += not self._skipped()

    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None
    ) -> Any:
        if func is not F.batch_norm or id(args[1]) not in self.norms or self._skipped():
            return func(*args, **(kwargs or {}))
        bound = _arguments(*args, **(kwargs or {}))
        x, running_mean, running_var, weight, bias, training, momentum, eps = bound
        affine, key = (weight, bias), id(running_mean)
        self.uses[key] += 1
        if not self.of_loss:
            y, *found = normalised_with_statistics(x, None, None, *affine, 0.0, eps)
        elif self.uses[key] > 1:
            return func(*args, **(kwargs or {}))
        elif training and x.dtype == running_mean.dtype and x.numel() > x.shape[1]:
            running = running_mean, running_var
            y, *found = normalised_with_statistics(x, *running, *affine, momentum, eps)
        else:  # in half precision the layer's statistics are too rough
            found = [*mean_and_variance(full_precision(x))]
            y = func(*args, **(kwargs or {}))
        self.statistics[key] = found[0], found[1]
        return y

    def _skipped(self) -> bool:
        """Whether this is a forward under no_grad, or inside torch.utils.checkpoint."""
        return self.of_loss and _autograd_state() != self._outside

    def complete_for(self, norms: Iterable[int]) -> bool:
        """Whether every pass used each of these norms once."""
        once = all(self.uses[norm] == self.passes for norm in norms)
        return once and set(norms) <= self.statistics.keys()

    @property
    def at_present_weights(self) -> bool:
        """Whether the weights are unchanged since the pass."""
        return self._fingerprint() == self._versions

    def _fingerprint(self) -> list[tuple[int, int, float]]:
        """Of each weight the count of in-place changes, as by an optimiser, and the address.

        On a CPU also its first number, since `weight.data.add_` is not counted.
        """

        def first(w: Tensor) -> float:
            return float(w.detach()[(0,) * w.ndim]) if w.is_cpu and w.numel() else 0.0

        return [(w._version, w.data_ptr(), first(w)) for w in self._weights]

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

    def rows(self, rows: Tensor | None) -> "SharedPass":
        """A copy with these rows' outputs (None: no outputs) and the whole batch's statistics."""
        shared, own = copy(self), self.outputs
        shared.outputs = None if own is None or rows is None else own[rows]
        return shared

    def matches(self, f: Probed, x: Tensor) -> bool | None:
        """Whether the outputs are those of f in eval mode, by a few examples.

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


def _autograd_state() -> tuple[bool, Any]:
    """Whether a graph is recorded, and the innermost hooks on saved tensors."""
    return torch.is_grad_enabled(), torch._C._autograd._top_saved_tensors_default_hooks(True)


class PassRecorder:
    """Records the loss's forwards of a model by hooks, so that the penalty can share them.

    It records the last four training-mode forwards whose single input requires no gradient. A
    backward through the outputs frees the graph, so that forward is dropped. Pickled or deep copies
    of the model are not recorded.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model: Callable[[], nn.Module | None] = (lambda: None) if model is None else ref(model)
        self.idle = False  # True: do not record the next forward
        self._recording: SharedPass | None = None
        self._passes: deque[tuple[Tensor, int, SharedPass]] = deque(maxlen=KEPT)
        self._hooks: list[RemovableHandle] = []
        if model is not None:
            self._hooks.append(model.register_forward_pre_hook(self._begin))
            self._hooks.append(model.register_forward_hook(self._end, always_call=True))

    def __reduce__(self) -> tuple:
        return PassRecorder, ()  # in a pickled or deep copy of the model the hooks do nothing

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def shared_pass(self, model: nn.Module, x: Tensor) -> SharedPass | None:
        """The last recorded forward of this very x at these weights, returned once; else None."""
        found = [p for at, v, p in self._passes if at is x and x._version == v]
        if not found or self.model() is not model:
            return None
        self._keep(lambda other: other is not found[-1])
        return found[-1] if found[-1].at_present_weights and not found[-1].random else None

    def _keep(self, wanted: Callable[[SharedPass], bool]) -> None:
        self._passes = deque((entry for entry in self._passes if wanted(entry[2])), KEPT)

    def _begin(self, model: nn.Module, inputs: tuple) -> None:
        if torch.compiler.is_compiling():
            return
        self._keep(lambda shared: shared.at_present_weights)
        x = inputs[0] if len(inputs) == 1 else None
        wanted = model.training and torch.is_grad_enabled() and self.model() is model
        wanted = wanted and not self.idle
        wanted = wanted and self._recording is None and not SharedPass.active
        if wanted and isinstance(x, Tensor) and not x.requires_grad:
            self._recording = SharedPass(model).__enter__()
            self._recording.passes = 1  # its hook came too late to count this forward

    def _end(self, _model: nn.Module, inputs: tuple, outputs: object) -> None:
        shared, self._recording = self._recording, None
        if shared is None:
            return
        shared.__exit__(None, None, None)
        if isinstance(outputs, Tensor) and outputs.requires_grad:
            shared.outputs = outputs
            outputs.register_hook(partial(self._forget, ref(shared)))
            self._passes.append((inputs[0], inputs[0]._version, shared))

    def _forget(self, used: ReferenceType[SharedPass], _gradient: Tensor) -> None:
        self._keep(lambda shared: shared is not used())
