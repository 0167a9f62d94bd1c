"""Draws from a denoiser, to look at."""

from itertools import pairwise

import torch
from torch import Tensor

from .denoiser import Denoiser


@torch.no_grad()
def sample(
    denoiser: Denoiser,
    n: int,
    *,
    steps: int = 24,
    sigma_max: float = 10.0,
    sigma_min: float = 0.005,
    generator: torch.Generator | None = None,
) -> Tensor:
    """n draws by Heun's method along dx/dσ = (x − D(x; σ))/σ (Karras et al., Algorithm 1).

    Noise levels fall from sigma_max to sigma_min along their ρ = 7 schedule, then to zero.
    """
    ramp = torch.linspace(0, 1, steps, dtype=torch.float64)
    levels = (sigma_max ** (1 / 7) + ramp * (sigma_min ** (1 / 7) - sigma_max ** (1 / 7))) ** 7
    sigmas = [*levels.tolist(), 0.0]
    # Drawn on the CPU, so that every device sees the same noise.
    noise = torch.randn(n, *denoiser.event_shape, generator=generator)
    x = denoiser.mean + sigmas[0] * noise.to(next(denoiser.parameters()))
    for here, there in pairwise(sigmas):
        slope = (x - denoiser(x, here)) / here
        step = x + (there - here) * slope
        if there > 0:
            ahead = (step - denoiser(step, there)) / there
            step = x + (there - here) * (slope + ahead) / 2
        x = step
    return x
