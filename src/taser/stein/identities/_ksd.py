"""The kernel Stein discrepancy: how far samples are from a law known by its score alone."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from taser.stein._checks import check_choice, check_inputs


class RadialKernel(Protocol):
    """k(x, y) = φ(‖x − y‖²)."""

    def derivatives(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """φ, φ' and φ'' at u = ‖x − y‖², each of u's shape."""


@dataclass(frozen=True)
class InverseMultiquadric:
    """k(x, y) = (c² + ‖x − y‖²)^(−1/2), whose slow decay sees the tails too."""

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

    With the scores s and t of p at x and y, D = x − y, u = ‖D‖² and k = φ(u) it is
    k_p = φ s·t + 2φ' (t − s)·D − 4φ''u − 2dφ'.
    """
    u = torch.cdist(x, y).square()
    k, slope, curvature = kernel.derivatives(u)
    drift = x @ t.T - (t * y).sum(1) - (s * x).sum(1)[:, None] + s @ y.T  # (t − s)·(x − y)
    trace = -4 * curvature * u - 2 * x.shape[1] * slope
    return k * (s @ t.T) + 2 * slope * drift + trace


Kernel = Literal["imq", "rbf"]
Bandwidth = float | Literal["median"]
KERNELS: dict[str, Callable[[float], RadialKernel]]
KERNELS = {"imq": InverseMultiquadric, "rbf": RadialBasis}
ENTRIES = 2**22  # of the Stein kernel's matrix, (n, n), in memory at once: 32 MB


@torch.no_grad()
def ksd(
    x: Tensor, s: Tensor, *, kernel: Kernel = "imq", bandwidth: Bandwidth = "median",
    statistic: Literal["u", "v"] = "u",
) -> float:  # fmt: skip
    """KSD²(q, p) = E_{x,x'~q}[k_p(x, x')] (app-ksd): zero if the samples' law q is p, else more.

    x: (n, *), independent draws from q; s: like x, the score of p there.

    kernel: "imq", (c² + ‖x − y‖²)^(−1/2), or "rbf", exp(−‖x − y‖²/(2c²)), where c is the bandwidth,
    by default the median distance between samples.
    statistic: "u" leaves out the pairs i = j: unbiased, so it may come out negative. "v" keeps
    them: never negative, and too large by O(1/n).
    """
    check_choice("statistic", statistic, ("u", "v"))
    x, s, c = _prepared(x, s, kernel, bandwidth)
    n, total, diagonal = len(x), 0.0, 0.0
    for rows, block in _row_blocks(KERNELS[kernel](c), x, s):
        total += float(block.sum())
        diagonal += float(block[:, rows].trace())
    return (total - diagonal) / (n * (n - 1)) if statistic == "u" else total / n**2


@dataclass(frozen=True)
class KSDTest:
    """Whether samples come from p: KSD² as a U-statistic, and how likely one so large is if so."""

    statistic: float
    p_value: float
    bandwidth: float
    n: int


@torch.no_grad()
def ksd_test(
    x: Tensor, s: Tensor, *, kernel: Kernel = "imq", bandwidth: Bandwidth = "median",
    bootstrap: int = 1000, generator: torch.Generator | None = None,
) -> KSDTest:  # fmt: skip
    """Are independent x, (n, *), draws from the law with score s? A small p_value says no.

    If they are, Σ_{i≠j} w_i w_j k_p(x_i, x_j)/(n(n − 1)) with random signs w has the law of KSD² in
    the limit (the wild bootstrap). The p-value is the share of `bootstrap` such draws, and the
    statistic itself, that reach the statistic. A Markov chain would be rejected too often.
    """
    if bootstrap < 1:
        raise ValueError(f"bootstrap should be at least 1; got {bootstrap}")
    x, s, c = _prepared(x, s, kernel, bandwidth)
    n = len(x)
    w = torch.randint(0, 2, (1 + bootstrap, n), device=x.device, generator=generator).to(x) * 2 - 1
    w[0] = 1  # the statistic itself
    sums = w.new_zeros(len(w))
    for rows, block in _row_blocks(KERNELS[kernel](c), x, s):
        block[:, rows].fill_diagonal_(0)
        sums += (w[:, rows] @ block * w).sum(1)
    draws = sums / (n * (n - 1))
    p_value = float((draws >= draws[0]).double().mean())
    return KSDTest(float(draws[0]), p_value, c, n)


def _prepared(
    x: Tensor, s: Tensor, kernel: str, bandwidth: float | str
) -> tuple[Tensor, Tensor, float]:
    """x and s as rows in double precision, (n, d) each, and the bandwidth as a number."""
    check_inputs(x, s)
    check_choice("kernel", kernel, tuple(KERNELS))
    if len(x) < 2:
        raise ValueError(f"pairs take at least two samples; x has {len(x)}")
    # Only differences of x matter, and products of centred rows lose fewer digits.
    x, s = x.detach().flatten(1).double(), s.flatten(1).double()
    x = x - x.mean(0)
    if isinstance(bandwidth, str):
        check_choice("bandwidth", bandwidth, ("median", "a number"))
        bandwidth = float(torch.pdist(x[:1000]).median())
        if not bandwidth > 0:
            raise ValueError(
                "bandwidth='median' is zero, as half of the samples coincide: give one"
            )
    if not 0 < bandwidth < math.inf:
        raise ValueError(f"bandwidth should be positive and finite; got {bandwidth}")
    return x, s, float(bandwidth)


def _row_blocks(kernel: RadialKernel, x: Tensor, s: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The Stein kernel's matrix, (n, n), as (rows, matrix[rows]) for a few rows at a time."""
    size = max(1, ENTRIES // len(x))
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        yield rows, stein_kernel(kernel, x[rows], s[rows], x, s)
