"""Scores: s(x) ≈ ∇log p(x) of the training inputs, (B, *) → (B, *), always detached."""

from taser._runtime import wrap_public_api

from ._adapters import ffdnet, from_diffusers, from_edm, named, pretrained
from ._denoiser import Denoiser
from ._densities import Density, DensityScore, Gaussian, GaussianMixture, KernelDensity
from ._fit import FitConfig, fit

from ._score import (  # isort: skip
    Affine, DenoisingScore, NoisedScore, Score, normalised, sigma_of, timestep_of,
)  # fmt: skip

__all__ = [
    "Affine", "Denoiser", "DenoisingScore", "Density", "DensityScore", "FitConfig", "Gaussian",
    "GaussianMixture", "KernelDensity", "NoisedScore", "Score", "ffdnet", "fit", "from_diffusers",
    "from_edm", "named", "normalised", "pretrained", "sigma_of", "timestep_of",
]  # fmt: skip

wrap_public_api(globals(), __all__)  # checks argument types, names them in errors
