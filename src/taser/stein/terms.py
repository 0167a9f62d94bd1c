"""What every backend returns: the residual once per probe, and its two terms where known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Operator = Literal["langevin", "first_order"]
Function = Callable[[Tensor], Tensor]
"""A scalar function of each input, (B, *) → (B,)."""


@dataclass(frozen=True)
class Terms:
    """Stein residuals of a batch.

    per_probe: (K, B), independent estimates of r, one row a probe (a single row where the
    estimate has no randomness); laplacian, drift: (B,), the parts Δf and s·∇f averaged over
    probes, or None where the backend never separates them.
    """

    per_probe: Tensor
    laplacian: Tensor | None = None
    drift: Tensor | None = None

    @classmethod
    def of(cls, drift: Tensor, laplacians: Tensor | None) -> "Terms":
        """r_k = Δ_k f + s·∇f, from the drift (B,) and one Laplacian per probe (K, B) or none."""
        if laplacians is None:
            return cls(drift[None], None, drift)
        return cls(laplacians + drift, laplacians.mean(0), drift)

    @property
    def residual(self) -> Tensor:
        """The mean over probes, (B,)."""
        return self.per_probe.mean(0)


def values(f: Function, x: Tensor, name: str = "f") -> Tensor:
    """f(x), which has to be one number for each row of x; `name` is for the message."""
    value = f(x)
    if tuple(value.shape) != (len(x),):
        raise ValueError(
            f"{name} should return one number per example, shape ({len(x)},); got "
            f"{tuple(value.shape)}. Reduce a vector output with a probe from taser.probes"
        )
    return value


def per_example(product: Tensor) -> Tensor:
    """Sum over all but the first dimension: (B, *) → (B,)."""
    return product.flatten(1).sum(1)
