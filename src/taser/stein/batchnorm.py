"""BatchNorm in training mode that also tells its batch's mean and variance, with gradients."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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
