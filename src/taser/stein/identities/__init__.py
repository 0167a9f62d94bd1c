"""The theorems of the paper as tools: is a score, or a model, what it should be?"""

from .divergence import divergence_form
from .estimate import Estimate
from .kernels import InverseMultiquadric, RadialBasis, stein_kernel
from .ksd import KSDTest, ksd, ksd_test
from .projection import projection_identity
from .shift_bound import ShiftBound, shift_bound
from .shifts import GaussianShift, exponential_tilt, gaussian_shift
from .sides import Sides
from .sobolev import SobolevIdentity, sobolev_identity
from .stein_identity import stein_identity

__all__ = [
    "Estimate",
    "GaussianShift",
    "InverseMultiquadric",
    "KSDTest",
    "RadialBasis",
    "ShiftBound",
    "Sides",
    "SobolevIdentity",
    "divergence_form",
    "exponential_tilt",
    "gaussian_shift",
    "ksd",
    "ksd_test",
    "projection_identity",
    "shift_bound",
    "sobolev_identity",
    "stein_identity",
    "stein_kernel",
]
