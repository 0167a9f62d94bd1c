"""Scores: s(x) ≈ ∇log p(x) of the training inputs, (B, *) → (B, *), always detached."""

from ._adapters import ffdnet, from_diffusers, from_edm
from ._denoiser import Denoiser
from ._densities import Density, Gaussian, GaussianMixture, KernelDensity
from ._fit import FitConfig, fit
from ._named import named, pretrained
from ._tweedie import (
    Affine,
    DenoisingScore,
    Replaced,
    Scaled,
    Score,
    normalised,
    sigma_of,
    timestep_of,
)

__all__ = [
    "Affine",
    "Denoiser",
    "DenoisingScore",
    "Density",
    "FitConfig",
    "Gaussian",
    "GaussianMixture",
    "KernelDensity",
    "Replaced",
    "Scaled",
    "Score",
    "ffdnet",
    "fit",
    "from_diffusers",
    "from_edm",
    "named",
    "normalised",
    "pretrained",
    "sigma_of",
    "timestep_of",
]
