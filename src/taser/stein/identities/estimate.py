"""A mean over samples and how far to trust it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


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
            raise ValueError(
                "a standard error takes at least two samples in one dimension; "
                f"got shape {tuple(samples.shape)}"
            )
        if not bool(torch.isfinite(samples).all()):
            bad = int((~torch.isfinite(samples)).sum())
            raise ValueError(f"samples should be finite; {bad} of {len(samples)} are not")
        samples = samples.detach().double()
        stderr = float(samples.std()) / math.sqrt(len(samples))
        return cls(float(samples.mean()), stderr, len(samples))

    @property
    def z(self) -> float:
        """How many standard errors the value lies from zero."""
        if self.stderr == 0:
            return math.copysign(math.inf, self.value) if self.value else 0.0
        return self.value / self.stderr

    def consistent_with(self, target: float = 0.0, *, z: float = 4.0) -> bool:
        """Whether `target` lies within z standard errors of the value.

        By chance alone one estimate in 16,000 strays further than the default.
        """
        return abs(self.value - target) <= z * self.stderr

    def __str__(self) -> str:
        if not 1e-6 <= self.stderr < 1e6:
            return f"{self.value:.3g} ± {self.stderr:.2g} (n = {self.n})"
        decimals = max(0, 1 - math.floor(math.log10(self.stderr)))
        return f"{self.value:.{decimals}f} ± {self.stderr:.{decimals}f} (n = {self.n})"
