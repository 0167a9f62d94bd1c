"""Noise levels: a diffusion timestep, or a standard deviation in the units of the inputs."""

from functools import lru_cache

import torch

REFERENCE_TIMESTEP = 50
"""The paper's timestep, t = 50 of DDPM's linear schedule."""


@lru_cache
def _linear_alphas_bar() -> tuple[float, ...]:
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    return tuple((1 - betas).cumprod(0).tolist())


def alpha_bar(timestep: int) -> float:
    """ᾱ_t = Π_{i≤t} (1 − β_i) of DDPM's linear schedule, β from 1e-4 to 0.02 in 1000 steps."""
    if not 0 <= timestep < 1000:
        raise ValueError(f"timestep should lie in 0…999, DDPM's linear schedule; got {timestep}")
    return _linear_alphas_bar()[timestep]


def pixel_sigma(alpha_bar: float) -> float:
    """The noise of ᾱ as a standard deviation on pixels in [0, 1].

    A diffusion model in [-1, 1] sees √ᾱ u + √(1−ᾱ) ε, which is √ᾱ (u + σ_u ε) with
    σ_u = √((1−ᾱ)/ᾱ); a pixel is half as wide as u, so σ = σ_u/2.
    """
    return 0.5 * ((1 - alpha_bar) / alpha_bar) ** 0.5


def sigma_of(timestep: int) -> float:
    """The noise of a timestep as a standard deviation on pixels in [0, 1]. At t = 50: 0.088."""
    return pixel_sigma(alpha_bar(timestep))


def timestep_of(sigma: float) -> int:
    """The timestep whose noise is nearest to `sigma`, in log scale."""
    if not sigma > 0:
        raise ValueError(f"sigma should be positive, in units of pixels in [0, 1]; got {sigma}")
    levels = torch.tensor([sigma_of(t) for t in range(1000)], dtype=torch.float64)
    return int((levels.log() - torch.tensor(sigma).double().log()).abs().argmin())


def level(timestep: int | None, sigma: float | None) -> float:
    """σ from either way of saying it; the reference timestep if neither is said."""
    if timestep is not None and sigma is not None:
        raise ValueError(f"give timestep or sigma, not both; got {timestep} and {sigma}")
    if sigma is None:
        return sigma_of(REFERENCE_TIMESTEP if timestep is None else timestep)
    if not sigma > 0:
        raise ValueError(f"sigma should be positive, in units of pixels in [0, 1]; got {sigma}")
    return float(sigma)
