"""Scores: s(x) ≈ ∇log p(x) of the training inputs, (B, *) → (B, *), always detached."""

from .adapters import from_diffusers, from_edm
from .affine import Affine
from .denoiser import Denoiser
from .denoising import DenoisingScore, Scaled, normalised
from .density import Density
from .ffdnet import ffdnet
from .fit import FitConfig, fit
from .gaussian import Gaussian
from .kernel_density import KernelDensity
from .mixture import GaussianMixture
from .named import named
from .noise import sigma_of, timestep_of
from .pretrained import pretrained
from .protocol import Score
from .replaced import Replaced

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
