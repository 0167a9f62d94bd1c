"""Random directions for Hutchinson's trace estimate."""

from typing import Literal

import torch
from torch import Tensor

Distribution = Literal["rademacher", "gaussian"]


def directions(
    x: Tensor,
    probes: int,
    distribution: Distribution = "rademacher",
    generator: torch.Generator | None = None,
) -> Tensor:
    """K directions v for each input with E[v vᵀ] = I, so that E[vᵀ H v] = tr H.

    x: (B, *); returns (K, B, *) in x's dtype and on its device. Rademacher signs have the smaller
    variance, 2·Σ_{i≠j} H_ij², against the Gaussian's 2·Σ_ij H_ij².
    """
    shape = (probes, *x.shape)
    if distribution == "gaussian":
        return torch.randn(shape, dtype=x.dtype, device=x.device, generator=generator)
    if distribution == "rademacher":
        bits = torch.randint(0, 2, shape, device=x.device, generator=generator)
        return bits.to(x.dtype).mul_(2).sub_(1)
    raise ValueError(f"distribution should be 'rademacher' or 'gaussian'; got {distribution!r}")
