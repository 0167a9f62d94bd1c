"""The Stein residual as a divergence."""

from collections.abc import Callable

import torch
from torch import Tensor

from taser.shapes import rows_like
from taser.stein.plain_kernels import plain_kernels
from taser.stein.reverse import gradient_with_graph
from taser.stein.terms import Function, values
from taser.stein.watch import Watched


def divergence_form(f: Function, x: Tensor, log_prob: Callable[[Tensor], Tensor]) -> Tensor:
    """L_p f(x) = (1/p(x)) ∇·(p(x) ∇f(x)) (app-langevin-divergence), at each x.

    f: (B, *) → (B,); x: (B, *); log_prob: (B, *) → (B,), log p up to a constant, differentiable.
    Returns (B,), values without a graph, to set beside :func:`taser.stein_residual`; it takes one
    backward for each of the d coordinates.

    >>> import torch
    >>> x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    >>> divergence_form(lambda x: x.square().sum(1), x, lambda x: -x.square().sum(1) / 2)
    tensor([ 2., -4.])
    """
    with torch.enable_grad(), plain_kernels(), torch.autocast(x.device.type, enabled=False):
        x, gradient = gradient_with_graph(Watched(f, "exact", graph=False), x)
        log_p = values(log_prob, x, "log_prob")
        if not log_p.requires_grad:
            raise ValueError("log_prob(x) should depend on x through autograd; it does not")
        density = (log_p - log_p.detach()).exp()  # p(·)/p(x): one at x, so nothing overflows
        flux = rows_like(density, x) * gradient
        return _divergence(flux, x)


def _divergence(field: Tensor, x: Tensor) -> Tensor:
    """Σ_i ∂field_i/∂x_i for field, x: (B, *)."""
    total = x.new_zeros(len(x))
    for i, column in enumerate(field.flatten(1).unbind(1)):
        (row,) = torch.autograd.grad(column.sum(), x, retain_graph=True)
        total += row.flatten(1)[:, i]
    return total
