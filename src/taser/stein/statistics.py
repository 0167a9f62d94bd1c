"""BatchNorm as the loss sees it, without letting the examples of a batch meet."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .guards import frozen, is_compiled, roots

Statistics = Literal["auto", "batch", "running"]


@contextmanager
def batch_statistics(model: Callable, x: Tensor, which: Statistics) -> Iterator[None]:
    """Let BatchNorms that are in training mode use the statistics of x, (B, *), held fixed.

    Mean and variance stay functions of the weights and become constants of the input: each
    example's derivatives are its own, and their parameter gradient knows that the loss, which
    normalises by the batch, does not change when a convolution before a BatchNorm is scaled. With
    running statistics the gradient would shrink such weights to no effect.

    To be entered before the model is put into evaluation mode. "auto" does this for whatever is in
    training mode, "running" never, "batch" insists. One more forward pass.
    """
    norms = [] if which == "running" else list(_training_norms(model))
    if which == "batch" and not norms:
        raise ValueError("batchnorm='batch', but no BatchNorm of the model is in training mode")
    if not norms:
        yield
        return
    fixed = _FixedStatistics({id(norm.running_mean) for norm in norms})
    with frozen(model), fixed, torch.autocast(x.device.type, enabled=False):
        model(x)
    fixed.recording = False
    with fixed:
        yield


def _training_norms(model: Callable) -> Iterator[nn.modules.batchnorm._BatchNorm]:
    for root in roots(model):
        modules = list(root.modules())
        if any(map(is_compiled, modules)):
            continue  # a compiled graph does not ask the function that we replace
        for module in modules:
            known = type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
            if known and module.training and module.running_mean is not None:
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
        """γ(x − μ)/√(v + ε) + β, as one multiplication and one addition for each channel."""
        if self.recording:
            var, mean = torch.var_mean(x, (0, *range(2, x.ndim)), correction=0)
            self.kept[id(running_mean)] = mean, var
        mean, var = self.kept[id(running_mean)]
        scale = torch.rsqrt(var + eps) if weight is None else weight * torch.rsqrt(var + eps)
        shift = -mean * scale if bias is None else bias - mean * scale
        channels = (1, -1, *[1] * (x.ndim - 2))
        return x * scale.view(channels) + shift.view(channels)
