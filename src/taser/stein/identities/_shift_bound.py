"""The shift bound: how far the residual's mean can move when the inputs do."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from taser.scores import Gaussian
from taser.stein._checks import Backend
from taser.stein._residual import Function, per_example, values

from ._estimate import Estimate, in_batches, residual_pair

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
    mean = gaussian.mean.view(gaussian.event_shape) + delta
    pull = -gaussian(mean[None])[0]  # the score at μ + δ is −Σ⁻¹δ
    moved = Gaussian(mean, gaussian.factor @ gaussian.factor.T)
    return GaussianShift(gaussian, moved, pull, math.expm1(float((pull * delta).sum())))


TINY = torch.finfo(torch.float64).tiny
FEWEST = 50  # effective samples under which a mean and its standard error say little


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
    backend: Backend = "reverse", probes: int = 1, step: float | None = None,
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
