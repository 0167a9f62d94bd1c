"""Means with standard errors, and Stein residuals of many samples, a batch at a time."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from taser.probes import Probed
from taser.stein._checks import Backend, check_inputs
from taser.stein._residual import Function, stein_residual


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
        """Whether `target` lies within z standard errors; by chance 1 in 16,000 misses 4."""
        return abs(self.value - target) <= z * self.stderr

    def __str__(self) -> str:
        if not 1e-6 <= self.stderr < 1e6:
            return f"{self.value:.3g} ± {self.stderr:.2g} (n = {self.n})"
        decimals = max(0, 1 - math.floor(math.log10(self.stderr)))
        return f"{self.value:.{decimals}f} ± {self.stderr:.{decimals}f} (n = {self.n})"


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


@torch.no_grad()
def residuals(f: Function, x: Tensor, s: Tensor, *, batch: int, **options: Any) -> Tensor:
    """r = Δf + s·∇f at x, (n, *), with scores s: (n,), without a graph, by batches."""
    check_inputs(x, s)
    parts = batches(f, batch, x, s)
    return torch.cat([stein_residual(part, *rows, **options) for part, rows in parts])


def residual_pair(
    f: Function, x: Tensor, s: Tensor, *, backend: Backend, **options: Any
) -> tuple[Tensor, Tensor]:
    """Two estimates of r with independent probes, (n,) each, so that their product has mean r²."""
    r = residuals(f, x, s, backend=backend, **options)
    return r, (r if backend == "exact" else residuals(f, x, s, backend=backend, **options))


def in_batches(function: Callable[[Tensor], Tensor], x: Tensor, batch: int) -> Tensor:
    """function(x), a batch of rows at a time."""
    return torch.cat([function(x[rows]) for rows in row_slices(len(x), batch)])


def row_slices(n: int, batch: int) -> Iterator[slice]:
    """The rows 0 … n − 1, `batch` at a time."""
    if n < 2:
        raise ValueError(f"an estimate takes at least two samples; x has {n}")
    if batch < 1:
        raise ValueError(f"batch should be at least 1; got {batch}")
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
