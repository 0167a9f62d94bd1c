"""The Sobolev identity: the penalty as a norm that the data's geometry weighs."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from taser._tensors import rows_like
from taser.scores import Score
from taser.stein._backends import (
    Function,
    directions,
    gradient_with_graph,
    hessian_vector_products,
    per_example,
    values,
)
from taser.stein._layer_checks import Backend, Watched, plain_kernels

from ._estimate import Estimate, Residuals, Sides, batches, compare, row_slices


def stein_identity(
    f: Function,
    x: Tensor,
    s: Tensor,
    *,
    backend: Backend = "reverse",
    probes: int = 1,
    step: float | None = None,
    generator: torch.Generator | None = None,
    batch: int = 256,
) -> Estimate:
    """E_p[L_p f] = E_p[Δf + s·∇f] (app-langevin-identity): zero if s is the score of x's law.

    f: (B, *) → (B,); x: (n, *), independent draws from p that the score has not been fitted to;
    s: like x, the score there. A value many standard errors from zero says that s is not the
    score of p; a value near zero says so only of this f, so ask with several.

    backend, probes, step, generator
        As for :func:`taser.stein_residual`. f has to be smooth: at a kink the Laplacian has a mass
        that "reverse" and "exact" do not see, so that on a ReLU network even the right score
        fails; "difference" sees it.
    batch
        How many rows are worked on at once. Labels follow their rows if f is a
        :class:`taser.probes.Probed`.

    >>> import torch
    >>> x = torch.randn(5000, 2, generator=torch.Generator().manual_seed(0))
    >>> f = lambda x: x.cos().sum(1)
    >>> stein_identity(f, x, -x).consistent_with(0)        # the score of N(0, I)
    True
    >>> stein_identity(f, x, -1.3 * x).consistent_with(0)  # that of a narrower law
    False
    """
    r = Residuals(backend, probes, step, generator, batch)
    return Estimate.of(r(f, x, s))


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


def projection_identity(
    f: Function,
    x: Tensor,
    s: Tensor,
    grad_log_ratio: Tensor,
    *,
    backend: Backend = "reverse",
    probes: int = 1,
    step: float | None = None,
    generator: torch.Generator | None = None,
    batch: int = 256,
) -> Sides:
    """E_q[L_p f] = −E_q[∇f·∇log(q/p)] (projection-identity-shift), from x ~ q.

    f: (B, *) → (B,), smooth; x: (n, *), independent draws from q; s: like x, the score of p there;
    grad_log_ratio: like x, ∇log(q/p) there, which is the score of q less that of p.
    The options are those of :func:`stein_identity`.
    """
    if grad_log_ratio.shape != x.shape:
        raise ValueError(
            f"grad_log_ratio should have the shape of x, {tuple(x.shape)}; "
            f"got {tuple(grad_log_ratio.shape)}"
        )
    r = Residuals(backend, probes, step, generator, batch)
    along_shift = r(f, x, grad_log_ratio, operator="first_order")  # ∇f·∇log(q/p)
    return compare(r(f, x, s), -along_shift)


@dataclass(frozen=True)
class SobolevIdentity(Sides):
    """Both sides of the Sobolev identity, and the two terms of the right one.

    curvature: E‖∇²f‖_F²; metric: E[∇fᵀ H_p ∇f], negative only if p is not log-concave.
    """

    curvature: Estimate
    metric: Estimate


@torch.no_grad()
def sobolev_identity(
    f: Function,
    x: Tensor,
    score: Score,
    *,
    probes: int | None = None,
    step: float | None = None,
    generator: torch.Generator | None = None,
    batch: int = 256,
) -> SobolevIdentity:
    """E_p[(L_p f)²] = E_p‖∇²f‖_F² + E_p[∇fᵀ H_p ∇f], H_p = −∇s (sobolev-stein-identity).

    f: (B, *) → (B,), smooth; x: (n, *), independent draws from p; score: (B, *) → (B, *), asked
    at x and a short step to either side, so it need not be differentiable by autograd.

    probes
        None for every second derivative of f, or K random directions for larger d. Both are
        unbiased: with directions the square on the left is the product of two independent
        estimates, and on the right E_v‖∇²f v‖² = ‖∇²f‖_F².
    step
        How far along ∇f the score is asked, in the units of x: eps^(1/3) by default, 0.005 in
        float32. It should be short against the distance over which the score changes.
    generator, batch
        The source of random directions; how many rows are worked on at once.
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x should be float32 or float64, to take a difference; got {x.dtype}")
    if step is not None and not step > 0:
        raise ValueError(f"step should be positive; got {step}")
    backend: Backend = "exact" if probes is None else "reverse"
    residuals = Residuals(backend, 1 if probes is None else probes, None, generator, batch)
    s = torch.cat([score(x[rows]) for rows in row_slices(len(x), batch)])
    first, second = residuals.pair(f, x, s)
    left = first * second  # (L_p f)²
    t = torch.finfo(x.dtype).eps ** (1 / 3) if step is None else step
    curvature, gradient = _curvature_and_gradient(f, x, probes, generator, batch)
    metric = -_quadratic_form(score, x, gradient, t, batch)
    sides = compare(left, curvature + metric)
    return SobolevIdentity(
        **vars(sides), curvature=Estimate.of(curvature), metric=Estimate.of(metric)
    )


def _curvature_and_gradient(
    f: Function, x: Tensor, probes: int | None, generator: torch.Generator | None, batch: int
) -> tuple[Tensor, Tensor]:
    """‖∇²f‖_F² and ∇f at x: (n,) and (n, *).

    The first is the mean of ‖∇²f v‖² over directions v whose v vᵀ have the mean I.
    """
    curvatures, gradients = [], []
    for part, (rows,) in batches(f, batch, x):
        v = _axes(rows) if probes is None else directions(rows, probes, generator=generator)
        with torch.enable_grad(), plain_kernels(), torch.autocast(x.device.type, enabled=False):
            leaf, gradient = gradient_with_graph(part, rows)
            squares = [per_example(_product(gradient, leaf, v_k).square()) for v_k in v]
        curvatures.append(torch.stack(squares).mean(0))
        gradients.append(gradient.detach())
    return torch.cat(curvatures), torch.cat(gradients)


def _product(gradient: Tensor, x: Tensor, v: Tensor) -> Tensor:
    """∇²f v for v: (B, *), as a value."""
    return hessian_vector_products(gradient, x, v[None])[0].detach()


def _axes(x: Tensor) -> Iterator[Tensor]:
    """√d e_i for i = 1 … d, each like x, (B, *): directions with the mean v vᵀ = I exactly."""
    d = x[0].numel()
    for i in range(d):
        v = x.new_zeros(d)
        v[i] = math.sqrt(d)
        yield v.view(x.shape[1:]).expand_as(x)


def _quadratic_form(score: Score, x: Tensor, g: Tensor, t: float, batch: int) -> Tensor:
    """gᵀ ∇s(x) g = |g| g·[s(x + t u) − s(x − t u)]/(2t) along u = g/|g|: (n,)."""
    size = per_example(g.square()).sqrt()
    u = g / rows_like(size.clamp_min(torch.finfo(g.dtype).tiny), g)
    forth, back = (
        torch.cat([score(points[rows]) for rows in row_slices(len(x), batch)])
        for points in (x + t * u, x - t * u)
    )
    return size * per_example(g * (forth - back)) / (2 * t)
