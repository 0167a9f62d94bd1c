"""The paper's theorems as functions of a test function f, draws x and scores s, with their errors.

Each returns both sides of a statement with standard errors, so that a test can tell whether it
holds: the divergence form, the projection and Sobolev identities, and the shift bound with the
shifts that it is about. The Stein identity itself is `taser.stein.identities.stein_identity`.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import taser
from taser.probes import Probed
from taser.scores import Gaussian
from taser.stein import directions
from taser.stein.identities import Estimate

Function = Callable[[Tensor], Tensor]
"""Of a batch, row by row: (B, *) → (B,), or a score, (B, *) → (B, *)."""
TINY = torch.finfo(torch.float64).tiny
FEWEST = 50  # effective samples under which a mean and its standard error say little


@dataclass(frozen=True)
class Sides:
    """Both sides of an identity E[left] = E[right], and their difference sample by sample."""

    left: Estimate
    right: Estimate
    difference: Estimate

    def holds(self, *, z: float = 4.0) -> bool:
        """Whether the sides agree within z standard errors of their difference."""
        return self.difference.consistent_with(0.0, z=z)

    def __str__(self) -> str:
        return f"left {self.left}, right {self.right}, difference {self.difference}"


def compare(left: Tensor, right: Tensor) -> Sides:
    """Both sides from their values at the same samples, (n,) each."""
    return Sides(Estimate.of(left), Estimate.of(right), Estimate.of(left - right))


def per_example(product: Tensor) -> Tensor:
    """Sum over all but the first dimension: (B, *) → (B,)."""
    return product.flatten(1).sum(1)


def row_slices(n: int, batch: int) -> Iterator[slice]:
    """The rows 0 … n − 1, `batch` at a time."""
    if n < 2:
        raise ValueError(f"an estimate takes at least two samples; x has {n}")
    return (slice(start, start + batch) for start in range(0, n, batch))


def batches(f: Function, batch: int, *tensors: Tensor) -> Iterator[tuple[Function, list[Tensor]]]:
    """f and `batch` rows of each tensor at a time; the labels of a Probed go with their rows."""
    n = len(tensors[0])
    y = f.y if isinstance(f, Probed) else None
    if y is not None and len(y) != n:
        raise ValueError(f"f should have one label for each of the {n} rows of x; got {len(y)}")
    for rows in row_slices(n, batch):
        part = replace(f, y=y[rows]) if isinstance(f, Probed) and y is not None else f
        yield part, [tensor[rows] for tensor in tensors]


def in_batches(function: Callable[[Tensor], Tensor], x: Tensor, batch: int) -> Tensor:
    """function(x), a batch of rows at a time."""
    return torch.cat([function(x[rows]) for rows in row_slices(len(x), batch)])


@torch.no_grad()
def residuals(f: Function, x: Tensor, s: Tensor, *, batch: int, **options: Any) -> Tensor:
    """r = Δf + s·∇f at x, (n, *), with scores s: (n,), without a graph, by batches."""
    if s.shape != x.shape:
        raise ValueError(f"s should have the shape and device of x, {tuple(x.shape)}")
    parts = batches(f, batch, x, s)
    return torch.cat([taser.stein_residual(part, *rows, **options) for part, rows in parts])


def residual_pair(
    f: Function, x: Tensor, s: Tensor, *, backend: str, **options: Any
) -> tuple[Tensor, Tensor]:
    """Two estimates of r with independent probes, (n,) each, so that their product has mean r²."""
    r = residuals(f, x, s, backend=backend, **options)
    return r, (r if backend == "exact" else residuals(f, x, s, backend=backend, **options))


def values(function: Function, x: Tensor, name: str) -> Tensor:
    """function(x), which has to be one number for each row of x."""
    value = function(x)
    if value.shape != (len(x),):
        raise ValueError(
            f"{name} should return one number per example, shape ({len(x)},); got "
            f"{tuple(value.shape)}"
        )
    return value


def gradient_of(f: Function, x: Tensor) -> tuple[Tensor, Tensor]:
    """x as a leaf and ∇f there with its graph, both (B, *)."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(
        values(f, x, "f").sum(), x, create_graph=True, materialize_grads=True
    )
    return x, gradient


@torch.enable_grad()
def divergence_form(f: Function, x: Tensor, log_prob: Function) -> Tensor:
    """L_p f(x) = (1/p(x)) ∇·(p(x) ∇f(x)) (app-langevin-divergence), at each x.

    f: (B, *) → (B,); x: (B, *); log_prob: (B, *) → (B,), log p up to a constant, differentiable.
    Returns (B,), without a graph, from one backward for each of the d coordinates.

    >>> x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    >>> divergence_form(lambda x: x.square().sum(1), x, lambda x: -x.square().sum(1) / 2)
    tensor([ 2., -4.])
    """
    taser.stein_residual(f, x, torch.zeros_like(x))  # raises if f couples the examples
    x, gradient = gradient_of(f, x)
    log_p = values(log_prob, x, "log_prob")
    if not log_p.requires_grad:
        raise ValueError("log_prob(x) should depend on x through autograd; it does not")
    density = (log_p - log_p.detach()).exp()  # p(·)/p(x): one at x, so nothing overflows
    flux = density[:, None] * gradient.flatten(1)
    divergence = x.new_zeros(len(x))
    for i, column in enumerate(flux.unbind(1)):
        (row,) = torch.autograd.grad(column.sum(), x, retain_graph=True)
        divergence += row.flatten(1)[:, i]
    return divergence


def projection_identity(
    f: Function, x: Tensor, s: Tensor, grad_log_ratio: Tensor, *, batch: int = 256, **options: Any
) -> Sides:
    """E_q[L_p f] = −E_q[∇f·∇log(q/p)] (projection-identity-shift), from x ~ q.

    f: (B, *) → (B,), smooth; x: (n, *), independent draws from q; s: like x, the score of p there;
    grad_log_ratio: like x, ∇log(q/p) there, which is the score of q less that of p.
    options: of :func:`taser.stein_residual`.
    """
    wanted, given = tuple(x.shape), tuple(grad_log_ratio.shape)
    if given != wanted:
        raise ValueError(f"grad_log_ratio should have the shape of x, {wanted}; got {given}")
    along_shift = residuals(
        f, x, grad_log_ratio, operator="first_order", batch=batch, **options
    )  # ∇f·∇log(q/p)
    return compare(residuals(f, x, s, batch=batch, **options), -along_shift)


@dataclass(frozen=True)
class SobolevIdentity(Sides):
    """Both sides of the identity, and the right one's E‖∇²f‖_F² and metric E[∇fᵀ H_p ∇f]."""

    curvature: Estimate
    metric: Estimate


@torch.no_grad()
def sobolev_identity(
    f: Function, x: Tensor, score: Function, *, probes: int | None = None,
    step: float | None = None, generator: torch.Generator | None = None, batch: int = 256,
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
        d = rows[0].numel()
        if probes is None:  # √d e_i, whose mean of v vᵀ is I exactly
            unit = torch.eye(d, dtype=rows.dtype).view(d, 1, *rows.shape[1:]) * d**0.5
            v = unit.expand(d, *rows.shape)
        else:
            v = directions(rows, probes, generator=generator)
        with torch.enable_grad():
            leaf, gradient = gradient_of(part, rows)
            products = [_hessian_times(gradient, leaf, v_k) for v_k in v]
        curvatures.append(torch.stack([per_example(p.square()) for p in products]).mean(0))
        gradients.append(gradient.detach())
    return torch.cat(curvatures), torch.cat(gradients)


def _hessian_times(gradient: Tensor, x: Tensor, v: Tensor) -> Tensor:
    """∇²f v, like x; zero where f is linear."""
    if not gradient.requires_grad:
        return torch.zeros_like(v)
    return torch.autograd.grad(gradient, x, v, retain_graph=True, materialize_grads=True)[0]


def _quadratic_form(score: Function, x: Tensor, g: Tensor, t: float, batch: int) -> Tensor:
    """gᵀ ∇s(x) g = |g| g·[s(x + t u) − s(x − t u)]/(2t) along u = g/|g|: (n,)."""
    size = per_example(g.square()).sqrt()
    tiny = torch.finfo(g.dtype).tiny
    u = g / size.clamp_min(tiny).view(-1, *[1] * (g.ndim - 1))
    forth, back = in_batches(score, x + t * u, batch), in_batches(score, x - t * u, batch)
    return size * per_example(g * (forth - back)) / (2 * t)


LogRatio = Callable[[Tensor], Tensor]
"""log q/p up to a constant, (B, *) → (B,)."""


def exponential_tilt(h: Callable[[Tensor], Tensor], epsilon: float) -> LogRatio:
    """log q/p = ε h(x) + constant, for the tilt q_ε(x) ∝ p(x) e^(ε h(x)).

    h: (B, *) → (B,). To first order in ε the response E_q[L_p f] is ε Cov_p(L_p f, h), so of all
    h of one variance the residual itself, h = L_p f, moves it most.
    """
    return lambda x: epsilon * h(x)


@dataclass(frozen=True)
class GaussianShift:
    """p = N(μ, Σ) moved to q = N(μ + δ, Σ); pull: Σ⁻¹δ, (*event); chi2: exp(δᵀΣ⁻¹δ) − 1."""

    p: Gaussian
    q: Gaussian
    pull: Tensor
    chi2: float

    @property
    def rho(self) -> float:
        """√χ²(q‖p), the radius of the smallest ball about p that holds q."""
        return math.sqrt(self.chi2)

    def log_ratio(self, x: Tensor) -> Tensor:
        """log q/p = δᵀΣ⁻¹(x − (2μ + δ)/2): (B, *event) → (B,)."""
        midpoint = (self.p.mean + self.q.mean).view(self.p.event_shape) / 2
        return per_example((x - midpoint) * self.pull)

    def grad_log_ratio(self, x: Tensor) -> Tensor:
        """∇log q/p = Σ⁻¹δ at every x: (B, *event) → (B, *event)."""
        return self.pull.expand_as(x)


def gaussian_shift(gaussian: Gaussian, delta: Tensor) -> GaussianShift:
    """The normal p = N(μ, Σ) moved by delta, (*event), with all that is known of the move."""
    if tuple(delta.shape) != gaussian.event_shape:
        wanted = f"delta should have the shape of one input, {gaussian.event_shape}"
        raise ValueError(f"{wanted}; got {tuple(delta.shape)}")
    mean = gaussian.mean + delta
    pull = -gaussian(mean[None])[0]  # the score at μ + δ is −Σ⁻¹δ
    moved = Gaussian(mean, gaussian.cov)
    return GaussianShift(gaussian, moved, pull, math.expm1(float((pull * delta).sum())))


@dataclass(frozen=True)
class ShiftBound:
    """Both sides of |E_q[L_p f]| ≤ ρ √E_p[(L_p f)²].

    response: E_q[L_p f]; rho: ρ, √χ²(q‖p) as estimated or as given; bound: the right side;
    slack: bound − |response|; effective_n: draws from q that the weighted ones from p are worth.
    """

    response: Estimate
    rho: float
    bound: Estimate
    slack: Estimate
    effective_n: float

    @property
    def tightness(self) -> float:
        """|response|/bound: 1 where Cauchy–Schwarz is an equality; nan if the bound is zero."""
        return abs(self.response.value) / self.bound.value if self.bound.value else math.nan

    def holds(self, *, z: float = 4.0) -> bool:
        """Whether the response keeps within the bound, give or take z standard errors."""
        return self.slack.value >= -z * self.slack.stderr


@torch.no_grad()
def shift_bound(
    f: Function, x: Tensor, s: Tensor, log_ratio: LogRatio, *, rho: float | None = None,
    backend: str = "reverse", probes: int = 1, step: float | None = None,
    generator: torch.Generator | None = None, batch: int = 256,
) -> ShiftBound:  # fmt: skip
    """|E_q[L_p f]| ≤ ρ √E_p[(L_p f)²] for ρ² = χ²(q‖p) (sup-shift-bound), from x ~ p.

    f: (B, *) → (B,), smooth; x: (n, *), independent draws from p; s: like x, the score there;
    log_ratio: (B, *) → (B,), log q/p up to a constant, for the importance weights.
    It rests on E_p[L_p f] = 0, so a wrong score can break it. ρ should be well above 1/√n.

    rho: √χ²(q‖p) if it is known, or the radius of a ball that holds q; by default it is estimated
    from the weights, which underestimate it when they are few or uneven.
    The other options: as for :func:`stein_identity`; E_p[(L_p f)²] is unbiased, of two probe sets.
    """
    if rho is not None and not 0 <= rho < math.inf:
        raise ValueError(f"rho should be a finite number that is not negative; got {rho}")
    first, second = residual_pair(
        f, x, s, backend=backend, probes=probes, step=step, generator=generator, batch=batch
    )
    r, r_squared = (first + second).double() / 2, first.double() * second.double()
    log_weights = in_batches(lambda rows: values(log_ratio, rows, "log_ratio"), x, batch)
    largest = log_weights.max()
    if not bool(torch.isfinite(largest)):  # also if any is nan; −∞ is a place that q never visits
        raise ValueError(f"log_ratio should be finite at the draws from p; got {float(largest)}")
    ratio = (log_weights.double() - largest).exp()
    ratio = ratio / ratio.mean()  # q/p at x ~ p, of mean 1
    effective_n = len(x) / float(ratio.square().mean())
    if effective_n < FEWEST:
        worth = f"{len(x)} draws from p are worth {effective_n:.1f} from q"
        message = f"the importance weights have collapsed: {worth}. Use more, or a smaller shift"
        warnings.warn(message, stacklevel=3)  # past the decorator, at the caller's line
    # Each (n,): its mean is the quantity, its spread gives the standard error (delta method).
    mean = (ratio * r).mean()  # E_q[r] = E_p[(q/p) r]
    responses = mean + ratio * (r - mean)
    norms = _root_of_mean(r_squared)
    rhos = _root_chi2(ratio) if rho is None else torch.full_like(ratio, rho)
    bounds = rhos.mean() * norms + (rhos - rhos.mean()) * norms.mean()
    slack = Estimate.of(bounds - responses.mean().sign() * responses)
    response, bound = Estimate.of(responses), Estimate.of(bounds)
    return ShiftBound(response, float(rhos.mean()), bound, slack, effective_n)


def _root_of_mean(squares: Tensor) -> Tensor:
    """√E[squares]."""
    mean = squares.mean()
    if mean <= 0 and bool(squares.any()):  # a product of two estimates can be negative
        advice = "Use more probes, more samples or backend='exact'"
        raise ValueError(f"E_p[(L_p f)²] > 0, but its estimate is {float(mean):.3g}. {advice}")
    root = mean.sqrt()
    return root + (squares - mean) / (2 * root).clamp_min(TINY)


def _root_chi2(ratio: Tensor) -> Tensor:
    """ρ = √χ²(q‖p), where χ²(q‖p) = E_p[(q/p − 1)²]."""
    excess = ratio - 1
    root = (chi2 := excess.square().mean()).sqrt()
    # The last term is there because the ratio is scaled by a mean that is itself an estimate.
    return root + (excess.square() - chi2 - 2 * chi2 * excess) / (2 * root).clamp_min(TINY)
