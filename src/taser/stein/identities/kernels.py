"""Base kernels that depend on the distance alone, and the Stein kernel made from them."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class RadialKernel(Protocol):
    """k(x, y) = φ(‖x − y‖²)."""

    def derivatives(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """φ, φ' and φ'' at u = ‖x − y‖², each of u's shape."""
        ...


@dataclass(frozen=True)
class InverseMultiquadric:
    """k(x, y) = (c² + ‖x − y‖²)^(−1/2), whose slow decay keeps watch over the tails too."""

    c: float

    def derivatives(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """φ, φ' and φ'' at u = ‖x − y‖²."""
        base = self.c**2 + u
        k = base.rsqrt()
        return k, -k / (2 * base), 3 * k / (4 * base.square())


@dataclass(frozen=True)
class RadialBasis:
    """k(x, y) = exp(−‖x − y‖²/(2h²))."""

    h: float

    def derivatives(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """φ, φ' and φ'' at u = ‖x − y‖²."""
        rate = 1 / (2 * self.h**2)
        k = (-rate * u).exp()
        return k, -rate * k, rate**2 * k


def stein_kernel(kernel: RadialKernel, x: Tensor, s: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """k_p(x_i, y_j) (app-stein-kernel) for all pairs: x, s: (n, d); y, t: (m, d) → (n, m).

    s and t are the scores of p at x and y. With D = x − y, u = ‖D‖² and k = φ(u),
    ∇_x k = 2φ'D = −∇_y k and tr ∇_x∇_y k = −4φ''u − 2dφ', so that
    k_p = φ s·t + 2φ' (t − s)·D − 4φ''u − 2dφ'.
    """
    u = torch.cdist(x, y).square()
    k, slope, bend = kernel.derivatives(u)
    own_x, own_y = (s * x).sum(1)[:, None], (t * y).sum(1)
    drift = x @ t.T - own_y - own_x + s @ y.T  # (t − s)·(x − y)
    trace = -4 * bend * u - 2 * x.shape[1] * slope
    return k * (s @ t.T) + 2 * slope * drift + trace


def median_distance(x: Tensor, most: int = 1000) -> float:
    """The median of ‖x_i − x_j‖ over i < j, x: (n, d), from the first `most` rows."""
    median = float(torch.pdist(x[:most]).median())
    if not median > 0:
        raise ValueError(
            "bandwidth='median' is zero, since at least half of the samples coincide; give a number"
        )
    return median
