"""Shifts q of a distribution p whose density ratio is known."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from taser.scores import Gaussian
from taser.stein.terms import per_example

LogRatio = Callable[[Tensor], Tensor]
"""log q/p up to a constant, (B, *) → (B,)."""


def exponential_tilt(h: Callable[[Tensor], Tensor], epsilon: float) -> LogRatio:
    """log q/p = ε h(x) + constant, for the tilt q_ε(x) ∝ p(x) e^(ε h(x)).

    h: (B, *) → (B,). To first order in ε the response E_q[L_p f] is ε Cov_p(L_p f, h), so of all
    h of one variance the residual itself, h = L_p f, moves it most.
    """

    def log_ratio(x: Tensor) -> Tensor:
        return epsilon * h(x)

    return log_ratio


@dataclass(frozen=True)
class GaussianShift:
    """p = N(μ, Σ) moved to q = N(μ + δ, Σ).

    pull: Σ⁻¹δ, (*event); chi2: χ²(q‖p) = exp(δᵀΣ⁻¹δ) − 1.
    """

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
        raise ValueError(
            f"delta should have the shape of one input, {gaussian.event_shape}; "
            f"got {tuple(delta.shape)}"
        )
    mean = gaussian.mean.view(gaussian.event_shape) + delta
    pull = -gaussian(mean[None])[0]  # the score at μ + δ is −Σ⁻¹δ
    moved = Gaussian(mean, gaussian.factor @ gaussian.factor.T)
    return GaussianShift(gaussian, moved, pull, math.expm1(float((pull * delta).sum())))
