"""The Sobolev identity: the penalty as a norm that the data's geometry weighs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from taser._runtime import rows_like
from taser.scores import Score
from taser.stein._checks import plain_kernels
from taser.stein._residual import (
    Function,
    axes,
    directions,
    hessian_vector_products,
    per_example,
    probe_gradient,
)

from ._estimate import Estimate, Sides, batches, compare, in_batches, residual_pair


@dataclass(frozen=True)
class SobolevIdentity(Sides):
    """Both sides of the identity, and the right one's E‖∇²f‖_F² and metric E[∇fᵀ H_p ∇f]."""

    curvature: Estimate
    metric: Estimate


@torch.no_grad()
def sobolev_identity(
    f: Function, x: Tensor, score: Score, *, probes: int | None = None, step: float | None = None,
    generator: torch.Generator | None = None, batch: int = 256,
) -> SobolevIdentity:  # fmt: skip
    """E_p[(L_p f)²] = E_p‖∇²f‖_F² + E_p[∇fᵀ H_p ∇f], H_p = −∇s (sobolev-stein-identity).

    f: (B, *) → (B,), smooth; x: (n, *), independent draws from p; score: (B, *) → (B, *), taken
    at x and a short step to either side, so it need not be differentiable by autograd.

    probes: None for every second derivative of f, or K random directions for larger d. Both are
    unbiased: with directions the left square is the product of two independent estimates.
    step: along ∇f to either side, in the units of x: eps^(1/3) by default, 0.005 in float32; short
    against the distance over which the score changes.
    generator: of random directions; batch: rows at once.
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x should be float32 or float64, to take a difference; got {x.dtype}")
    if step is not None and not step > 0:
        raise ValueError(f"step should be positive; got {step}")
    first, second = residual_pair(
        f, x, in_batches(score, x, batch), batch=batch, generator=generator,
        backend="exact" if probes is None else "reverse", probes=1 if probes is None else probes,
    )  # fmt: skip
    t = torch.finfo(x.dtype).eps ** (1 / 3) if step is None else step
    curvature, gradient = _curvature_and_gradient(f, x, probes, generator, batch)
    metric = -_quadratic_form(score, x, gradient, t, batch)
    sides = vars(compare(first * second, curvature + metric))
    return SobolevIdentity(**sides, curvature=Estimate.of(curvature), metric=Estimate.of(metric))


def _curvature_and_gradient(
    f: Function, x: Tensor, probes: int | None, generator: torch.Generator | None, batch: int
) -> tuple[Tensor, Tensor]:
    """‖∇²f‖_F², the mean of ‖∇²f v‖² over v with E[v vᵀ] = I, and ∇f at x: (n,) and (n, *)."""
    curvatures, gradients = [], []
    for part, (rows,) in batches(f, batch, x):
        v = axes(rows) if probes is None else directions(rows, probes, generator=generator)
        with torch.enable_grad(), plain_kernels(), torch.autocast(x.device.type, enabled=False):
            leaf, gradient = probe_gradient(part, rows, graph=True)
            products = [hessian_vector_products(gradient, leaf, v_k[None])[0] for v_k in v]
        squares = [per_example(product.detach().square()) for product in products]
        curvatures.append(torch.stack(squares).mean(0))
        gradients.append(gradient.detach())
    return torch.cat(curvatures), torch.cat(gradients)


def _quadratic_form(score: Score, x: Tensor, g: Tensor, t: float, batch: int) -> Tensor:
    """gᵀ ∇s(x) g = |g| g·[s(x + t u) − s(x − t u)]/(2t) along u = g/|g|: (n,)."""
    size = per_example(g.square()).sqrt()
    u = g / rows_like(size.clamp_min(torch.finfo(g.dtype).tiny), g)
    forth, back = in_batches(score, x + t * u, batch), in_batches(score, x - t * u, batch)
    return size * per_example(g * (forth - back)) / (2 * t)
