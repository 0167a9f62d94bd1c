"""The model as a penalty asks it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from taser._tensors import full_precision
from taser.probes import Probed

from ._layer_checks import UnsupportedLayer
from ._model_state import any_compiled, check_module, eval_mode


def normalised(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """y = γ(x − μ)/√(v + ε) + β, and μ, v: x (B, C, *), the others (C,).

    The layer computes μ and v anyway, and only does not say them; asking once more would read every
    activation again, there and on the way back. Running statistics follow as always.
    """
    return _Normalised.apply(x, running_mean, running_var, weight, bias, momentum, eps)


def mean_and_variance(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel, (C,) both."""
    var, mean = torch.var_mean(x, (0, *range(2, x.ndim)), correction=0)
    return mean, var


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
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
        if torch.is_grad_enabled():  # somebody differentiates twice
            of_x, of_weight, of_bias = _with_graph((x, weight, bias), ctx.eps, gradients, wanted)
        else:
            of_x, of_weight, of_bias = _fused(x, weight, mean, invstd, ctx.eps, gradients, wanted)
        return of_x, None, None, of_weight, of_bias, None, None


Gradients = tuple[Tensor | None, ...]


def _fused(
    x: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor, eps: float,
    gradients: Gradients, wanted: list[bool],
) -> Gradients:  # fmt: skip
    """The layer's own, and for x ∂μ/∂x = 1/n, ∂v/∂x = 2(x − μ)/n with n values in a channel."""
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
    """The same from the parts, each of which torch can differentiate again."""
    x, weight, bias = inputs
    assert x is not None
    outputs = (F.batch_norm(x, None, None, weight, bias, True, 0.0, eps), *mean_and_variance(x))
    asked = [i for i, gradient in enumerate(gradients) if gradient is not None]
    own = [t for t, w in zip(inputs, wanted, strict=True) if w and t is not None]
    found = iter(
        torch.autograd.grad(
            [outputs[i] for i in asked], own, [gradients[i] for i in asked],
            create_graph=True, allow_unused=True,
        )
    )  # fmt: skip
    return [next(found) if w else None for w in wanted]


Statistics = Literal["auto", "running"]


@contextmanager
def batch_statistics(
    model: Callable, x: Tensor, which: Statistics, recorded: "Recorded | None" = None
) -> Iterator[None]:
    """Let BatchNorms that are in training mode use the statistics of x, (B, *), held fixed.

    Mean and variance stay functions of the weights and become constants of the input: each
    example's derivatives are its own, and their parameter gradient knows that the loss, which
    normalises by the batch, does not change when a convolution before a BatchNorm is scaled. With
    running statistics the gradient would shrink such weights to no effect.

    To be entered outside autocast and before the model is put into evaluation mode. "auto" does
    this for whatever is in training mode, "running" never. It costs one more forward pass, unless
    the statistics were recorded in a pass that the loss made anyway. A compiled model is asked as
    it was before, because its graph does not call the function that is replaced here.
    """
    norms = [] if which == "running" else list(_training_norms(model))
    if not norms:
        yield
        return
    keys = {id(norm.running_mean) for norm in norms}
    fixed = _FixedStatistics(keys)
    with torch.compiler.set_stance("force_eager") if any_compiled(model) else nullcontext():
        if recorded is not None and recorded.knows(keys):
            fixed.kept = recorded.kept
        else:
            with eval_mode(model), fixed:
                model(x.clone())  # a copy: the model may begin with an operation in place
        fixed.recording = False
        with fixed:
            yield


class Recorded(TorchFunctionMode):
    """Keeps mean and variance of what each BatchNorm sees in a pass that the loss makes anyway.

    The first pass inside counts, and its graph: one backward pass of loss and penalty together
    serves both. :class:`~taser.stein.SharedPass` hands it to the penalty.
    """

    def __init__(self, model: Callable) -> None:
        super().__init__()
        self.model = check_module(model)
        self.norms = {id(norm.running_mean) for norm in _training_norms(self.model)}
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.uses: Counter[int] = Counter()
        self.passes = 0
        self._hook: RemovableHandle | None = None

    def knows(self, norms: set[int]) -> bool:
        """Whether every pass asked each of these once."""
        return norms <= self.kept.keys() and all(self.uses[norm] == self.passes for norm in norms)

    def __enter__(self) -> Self:
        self._hook = self.model.register_forward_pre_hook(self._count)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._hook is not None:
            self._hook.remove()

    def _count(self, _module: nn.Module, _inputs: object) -> None:
        self.passes += 1

    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None
    ) -> Any:
        if func is F.batch_norm and id(args[1]) in self.norms:
            self.uses[id(args[1])] += 1
            if self.uses[id(args[1])] == 1:
                return self._keep(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _keep(
        self, x: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor | None = None,
        bias: Tensor | None = None, training: bool = False, momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        if training and x.dtype == running_mean.dtype and x.numel() > x.shape[1]:
            y, mean, var = normalised(x, running_mean, running_var, weight, bias, momentum, eps)
        else:  # in half precision the layer's own statistics are too rough
            mean, var = mean_and_variance(full_precision(x))
            y = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        self.kept[id(running_mean)] = mean, var
        return y


def _training_norms(model: Callable) -> Iterator[_BatchNorm]:
    for module in check_module(model).modules():
        is_norm = isinstance(module, _BatchNorm)
        if is_norm and module.training and module.running_mean is not None:
            yield module  # type: ignore[misc]


class _FixedStatistics(TorchFunctionMode):
    """Records mean and variance of each norm's input once, then normalises by these."""

    def __init__(self, norms: set[int]) -> None:
        super().__init__()
        self.norms = norms
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.recording = True

    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None
    ) -> Any:
        if func is F.batch_norm and id(args[1]) in self.norms:
            return self._normalise(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _normalise(
        self,
        x: Tensor,
        running_mean: Tensor,
        running_var: Tensor,  # noqa: ARG002
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,  # noqa: ARG002
        momentum: float = 0.1,  # noqa: ARG002
        eps: float = 1e-5,
    ) -> Tensor:
        """γ(x − μ)/√(v + ε) + β, by the fused layer of evaluation mode.

        That layer has no gradient to μ and v. With μ̄ and v̄ their values, held fixed, the same is
        γ'(x − μ̄)/√(v̄ + ε) + β' with γ' = γ√((v̄ + ε)/(v + ε)), β' = β + γ'(μ̄ − μ)/√(v̄ + ε), whose
        gradients go on to μ and v, at the price of a few numbers for each channel.
        """
        if self.recording:
            if id(running_mean) in self.kept:
                raise UnsupportedLayer(
                    f"a BatchNorm of {len(running_mean)} channels is asked twice in one pass, so "
                    "that it has two means and variances. Give each place a norm of its own, or "
                    "use batchnorm='running'"
                )
            self.kept[id(running_mean)] = mean_and_variance(full_precision(x))
        mean, var = self.kept[id(running_mean)]
        fixed_mean, fixed_var = mean.detach(), var.detach()
        scale = torch.sqrt((fixed_var + eps) / (var + eps))
        scale = scale if weight is None else weight * scale
        shift = (fixed_mean - mean) * scale * torch.rsqrt(fixed_var + eps)
        shift = shift if bias is None else bias + shift
        return F.batch_norm(x, fixed_mean, fixed_var, scale, shift, False, 0.0, eps)


TRIED = 4
TOLERANCE = 1e-3


class SharedPass:
    """What the loss has computed already: BatchNorm's statistics, and the outputs at x.

        with taser.SharedPass(model) as shared:
            outputs = shared.outputs = model(x)
        loss = cross_entropy(outputs, y) + lam * penalty(model, x, y, s, shared=shared)

    The penalty then makes one pass less for the statistics and one less for f(x). Outputs of a pass
    that drew random numbers, as dropout does, are left aside, and those of layers that answer
    otherwise in evaluation mode: at the first call a few are compared with the model's own
    answers. So are outputs in half precision, in which differences drown; do not give them in
    disguise, cast to float32. Loss and penalty share a graph, so they have to share one
    `backward`. Of a compiled model the outputs alone are shared.

    The outputs have to be those of the very x that the penalty gets, row for row: at others the
    penalty would take the difference of two examples for a derivative. Weights that changed since
    are refused.
    """

    def __init__(self, model: Callable | None = None) -> None:
        unseen = model is None or any_compiled(model)
        self.statistics = None if unseen else Recorded(model)  # type: ignore[arg-type]
        self.outputs: Tensor | None = None
        self._weights = [] if model is None else list(check_module(model).parameters())
        self._versions = self._changes()
        self._random: list[Tensor] = []
        self.drew = False

    def __repr__(self) -> str:
        outputs = None if self.outputs is None else tuple(self.outputs.shape)
        known = "with" if self.statistics is not None else "without"
        return f"SharedPass({known} BatchNorm's statistics, outputs={outputs})"

    def _changes(self) -> int:
        """How often the weights have been changed in place, as an optimiser does."""
        return sum(weight._version for weight in self._weights)

    def __enter__(self) -> "SharedPass":
        self._versions = self._changes()
        self._random = self._random_states()
        if self.statistics is not None:
            self.statistics.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.statistics is not None:
            self.statistics.__exit__(*error)
        after = self._random_states()
        self.drew = not all(map(torch.equal, self._random, after))

    def _random_states(self) -> list[Tensor]:
        """Of the generators that the model's layers draw from."""
        devices = {weight.device for weight in self._weights if weight.is_cuda}
        states = [torch.cuda.get_rng_state(device) for device in sorted(devices, key=str)]
        return [torch.get_rng_state(), *states]

    def check(self, x: Tensor) -> None:
        """Raise unless there is an output for each input."""
        if self.outputs is not None and len(self.outputs) != len(x):
            raise ValueError(
                f"the shared pass was made at other inputs: it has {len(self.outputs)} outputs for "
                f"{len(x)} inputs"
            )
        if self._changes() != self._versions:
            raise ValueError(
                "the shared pass was made at other weights: ask the model again after each step of "
                "the optimiser"
            )

    def rows(self, rows: Tensor) -> "SharedPass":
        """For a part of the batch; the statistics are those of the whole."""
        return self._with(None if self.outputs is None else self.outputs[rows])

    def elsewhere(self) -> "SharedPass":
        """For other points than x: their outputs are not known."""
        return self._with(None)

    def agrees(self, f: Probed, x: Tensor) -> bool | None:
        """Whether the outputs are those of the function that f asks, on a few examples.

        None if that cannot be seen: a network whose last layer is still zero says the same of all.
        """
        known, few = self.values(f, x), slice(TRIED)
        if known is None:
            return False
        labels = None if f.y is None else f.y[few]
        with torch.no_grad():  # of a copy: the model may begin with an operation in place
            outputs = f.model(x[few].clone())
            own = f.probe(outputs, labels)
            if bool((own - known[few]).abs().max() > TOLERANCE * (1 + own.abs().max())):
                return False
            return True if len(own) < 2 or bool((outputs != outputs[0]).any()) else None

    def values(self, f: Probed, x: Tensor) -> Tensor | None:
        """f(x), (B,), with its graph; None if it is not known to the precision of x."""
        if self.outputs is None or self.drew or self.outputs.dtype != x.dtype:
            return None  # asked before the probe, which takes outputs out of half precision
        return f.probe(self.outputs, f.y)

    def _with(self, outputs: Tensor | None) -> "SharedPass":
        shared = SharedPass()
        shared.statistics, shared.outputs, shared.drew = self.statistics, outputs, self.drew
        return shared


@contextmanager
def asked(
    model: Callable, x: Tensor, shared: SharedPass | None = None, which: Statistics = "auto"
) -> Iterator[None]:
    """Full precision, BatchNorm by the fixed statistics of x, (B, *), and evaluation mode.

    shared: a pass of the loss that may have recorded these statistics.
    """
    recorded = None if shared is None else shared.statistics
    with (
        torch.autocast(x.device.type, enabled=False),
        batch_statistics(model, full_precision(x), which, recorded),
        eval_mode(model),
    ):
        yield
