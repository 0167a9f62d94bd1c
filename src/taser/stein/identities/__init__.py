"""Test whether a score belongs to the distribution of given samples: Stein identity, KSD."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from taser._runtime import wrap_public_api
from taser.probes import Probed
from taser.stein._checks import Backend, check_choice, check_count, check_inputs
from taser.stein._residual import Function, stein_residual

__all__ = [
    "Estimate", "KSDTest", "inverse_multiquadric", "ksd", "ksd_test", "radial_basis",
    "stein_identity", "stein_kernel",
]  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """The mean of n independent samples, with its standard error.

    >>> print(Estimate(0.0123, 0.0101, 5000))
    0.012 ± 0.010 (n = 5000)
    """

    value: float
    stderr: float
    n: int

    @classmethod
    def of(cls, samples: Tensor) -> "Estimate":
        """Mean and std/√n of samples, (n,), added up in double precision."""
        if samples.ndim != 1 or len(samples) < 2:
            given = tuple(samples.shape)
            raise ValueError(f"give at least two samples in one dimension; got shape {given}")
        if not bool(torch.isfinite(samples).all()):
            bad = int((~torch.isfinite(samples)).sum())
            raise ValueError(f"samples should be finite; {bad} of {len(samples)} are not")
        samples, n = samples.detach().double(), len(samples)
        return cls(float(samples.mean()), float(samples.std()) / math.sqrt(n), n)

    @property
    def z(self) -> float:
        """How many standard errors the value lies from zero."""
        if self.stderr == 0:
            return math.copysign(math.inf, self.value) if self.value else 0.0
        return self.value / self.stderr

    def consistent_with(self, target: float = 0.0, *, z: float = 4.0) -> bool:
        """Whether `target` is within z standard errors; a true one is outside 4 once in 16,000."""
        return abs(self.value - target) <= z * self.stderr

    def __str__(self) -> str:
        if not 1e-6 <= self.stderr < 1e6:
            return f"{self.value:.3g} ± {self.stderr:.2g} (n = {self.n})"
        decimals = max(0, 1 - math.floor(math.log10(self.stderr)))
        return f"{self.value:.{decimals}f} ± {self.stderr:.{decimals}f} (n = {self.n})"


@torch.no_grad()
def stein_identity(
    f: Function, x: Tensor, s: Tensor, *, backend: Backend = "reverse", probes: int = 1,
    step: float | None = None, generator: torch.Generator | None = None, batch: int = 256,
) -> Estimate:  # fmt: skip
    """E_p[L_p f] = E_p[Δf + s·∇f]: zero if s is the score of p (the paper's Stein identity).

    f: (B, *) → (B,); x: (n, *), independent draws from p that the score has not been fitted to;
    s: like x, the score there. A value many standard errors from zero shows that s is not the
    score of p; a value near zero shows nothing for other f, so test several.

    backend, probes, step, generator: as for :func:`taser.stein_residual`. f has to be smooth: only
    "difference" includes the curvature of a ReLU network's kinks. batch: rows at once.

    >>> import torch
    >>> x = torch.randn(5000, 2, generator=torch.Generator().manual_seed(0))
    >>> f = lambda x: x.cos().sum(1)
    >>> stein_identity(f, x, -x).consistent_with(0)        # the score of N(0, I)
    True
    >>> stein_identity(f, x, -1.3 * x).consistent_with(0)  # the score of a narrower normal
    False
    """
    check_inputs(x, s)
    if len(x) < 2:
        raise ValueError(f"an estimate takes at least two samples; x has {len(x)}")
    check_count("batch", batch)
    y = f.y if isinstance(f, Probed) else None
    if y is not None and len(y) != len(x):
        raise ValueError(
            f"f should have one label for each of the {len(x)} rows of x; got {len(y)}"
        )
    residuals = []
    for start in range(0, len(x), batch):
        rows = slice(start, start + batch)
        part = replace(f, y=y[rows]) if isinstance(f, Probed) and y is not None else f
        residuals.append(
            stein_residual(
                part, x[rows], s[rows], backend=backend, probes=probes, step=step,
                generator=generator,
            )
        )  # fmt: skip
    return Estimate.of(torch.cat(residuals))


RadialKernel = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""k(x, y) = φ(‖x − y‖²) as a function u ↦ φ(u), φ'(u), φ''(u), each of u's shape."""


def inverse_multiquadric(u: Tensor, c: float) -> tuple[Tensor, Tensor, Tensor]:
    """k(x, y) = (c² + ‖x − y‖²)^(−1/2), whose slow decay includes the tails."""
    base = c**2 + u
    k = base.rsqrt()
    return k, -k / (2 * base), 3 * k / (4 * base.square())


def radial_basis(u: Tensor, c: float) -> tuple[Tensor, Tensor, Tensor]:
    """k(x, y) = exp(−‖x − y‖²/(2c²))."""
    rate = 1 / (2 * c**2)
    k = (-rate * u).exp()
    return k, -rate * k, rate**2 * k


def stein_kernel(kernel: RadialKernel, x: Tensor, s: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """The Stein kernel k_p(x_i, y_j) for all pairs: x, s: (n, d); y, t: (m, d) → (n, m).

    With the scores s and t of p at x and y, D = x − y, u = ‖D‖² and k = φ(u) it is
    k_p = φ s·t + 2φ' (t − s)·D − 4φ''u − 2dφ'.
    """
    u = torch.cdist(x, y).square()
    k, slope, curvature = kernel(u)
    drift = x @ t.T - (t * y).sum(1) - (s * x).sum(1)[:, None] + s @ y.T  # (t − s)·(x − y)
    trace = -4 * curvature * u - 2 * x.shape[1] * slope
    return k * (s @ t.T) + 2 * slope * drift + trace


Kernel = Literal["imq", "rbf"]
Bandwidth = float | Literal["median"]
KERNELS = {"imq": inverse_multiquadric, "rbf": radial_basis}
ENTRIES = 2**22  # most entries of the Stein kernel's matrix in memory at once: 32 MB


@torch.no_grad()
def ksd(
    x: Tensor, s: Tensor, *, kernel: Kernel = "imq", bandwidth: Bandwidth = "median",
    statistic: Literal["u", "v"] = "u",
) -> float:  # fmt: skip
    """Kernel Stein discrepancy KSD²(q, p) = E_{x,x'~q}[k_p(x, x')]: zero if q = p, else positive.

    x: (n, *), independent draws from q; s: like x, the score of p there.

    kernel: "imq", (c² + ‖x − y‖²)^(−1/2), or "rbf", exp(−‖x − y‖²/(2c²)), where c is the bandwidth,
    by default the median distance between samples.
    statistic: "u" leaves out the pairs i = j: unbiased, so it may come out negative. "v" keeps
    them: never negative, and too large by O(1/n).
    """
    check_choice("statistic", statistic, ("u", "v"))
    x, s, c = _prepared(x, s, kernel, bandwidth)
    n, total, diagonal = len(x), 0.0, 0.0
    for rows, block in _row_blocks(kernel, c, x, s):
        total += float(block.sum())
        diagonal += float(block[:, rows].trace())
    return (total - diagonal) / (n * (n - 1)) if statistic == "u" else total / n**2


@dataclass(frozen=True)
class KSDTest:
    """Whether samples come from p: KSD² as a U-statistic, and the p-value under that hypothesis."""

    statistic: float
    p_value: float
    bandwidth: float
    n: int


@torch.no_grad()
def ksd_test(
    x: Tensor, s: Tensor, *, kernel: Kernel = "imq", bandwidth: Bandwidth = "median",
    bootstrap: int = 1000, generator: torch.Generator | None = None,
) -> KSDTest:  # fmt: skip
    """Test whether independent x, (n, *), have the distribution with score s; small p_value: no.

    Wild bootstrap: if they have, Σ_{i≠j} w_i w_j k_p(x_i, x_j)/(n(n − 1)) with random signs w
    is distributed as KSD² for large n. The p-value is the share of `bootstrap` such draws, and the
    statistic itself, that reach the statistic. Samples of a Markov chain are rejected too often.
    """
    if bootstrap < 1:
        raise ValueError(f"bootstrap should be at least 1; got {bootstrap}")
    x, s, c = _prepared(x, s, kernel, bandwidth)
    n = len(x)
    w = torch.randint(0, 2, (1 + bootstrap, n), device=x.device, generator=generator).to(x) * 2 - 1
    w[0] = 1  # the statistic itself
    sums = w.new_zeros(len(w))
    for rows, block in _row_blocks(kernel, c, x, s):
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
                "bandwidth='median' is zero, since half of the samples coincide: give a number"
            )
    if not 0 < bandwidth < math.inf:
        raise ValueError(f"bandwidth should be positive and finite; got {bandwidth}")
    return x, s, float(bandwidth)


def _row_blocks(
    kernel: Kernel, bandwidth: float, x: Tensor, s: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """The Stein kernel's matrix, (n, n), as (rows, matrix[rows]) for a few rows at a time."""
    size, own = max(1, ENTRIES // len(x)), partial(KERNELS[kernel], c=bandwidth)
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        yield rows, stein_kernel(own, x[rows], s[rows], x, s)


wrap_public_api(globals(), ("ksd", "ksd_test", "stein_identity"))  # checks argument types
