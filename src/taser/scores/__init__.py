"""Scores: s(x) ≈ ∇log p(x) of the training inputs, (B, *) → (B, *), always detached."""

from .affine import Affine
from .density import Density
from .gaussian import Gaussian
from .kernel_density import KernelDensity
from .mixture import GaussianMixture
from .protocol import Score

__all__ = ["Affine", "Density", "Gaussian", "GaussianMixture", "KernelDensity", "Score"]
