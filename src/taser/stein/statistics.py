"""BatchNorm as the loss sees it, without letting the examples of a batch meet."""

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

from taser.probes.precision import full_precision

from .batchnorm import mean_and_variance, normalised
from .guards import UnsupportedLayer, any_compiled, frozen, roots

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
            with frozen(model), fixed:
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
        self.roots = roots(model)
        self.norms = {
            id(norm.running_mean): root for root in self.roots for norm in _training_norms(root)
        }
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.uses: Counter[int] = Counter()
        self.passes: Counter[nn.Module] = Counter()
        self._hooks: list[RemovableHandle] = []

    def knows(self, norms: set[int]) -> bool:
        """Whether every pass asked each of these once."""
        return norms <= self.kept.keys() and all(
            self.uses[norm] == self.passes[self.norms[norm]] for norm in norms
        )

    def __enter__(self) -> Self:
        self._hooks = [root.register_forward_pre_hook(self._count) for root in self.roots]
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def _count(self, root: nn.Module, _: object) -> None:
        self.passes[root] += 1

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
    for root in roots(model):
        for module in root.modules():
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
