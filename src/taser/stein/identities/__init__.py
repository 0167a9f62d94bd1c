"""The theorems of the paper as tools: is a score, or a model, what it should be?"""

from taser._runtime import check_arguments

from ._estimate import Estimate, Sides
from ._ksd import InverseMultiquadric, KSDTest, RadialBasis, ksd, ksd_test, stein_kernel
from ._langevin import divergence_form, projection_identity, stein_identity
from ._shift_bound import GaussianShift, ShiftBound, exponential_tilt, gaussian_shift, shift_bound
from ._sobolev import SobolevIdentity, sobolev_identity

__all__ = [
    "Estimate", "GaussianShift", "InverseMultiquadric", "KSDTest", "RadialBasis", "ShiftBound",
    "Sides", "SobolevIdentity", "divergence_form", "exponential_tilt", "gaussian_shift", "ksd",
    "ksd_test", "projection_identity", "shift_bound", "sobolev_identity", "stein_identity",
    "stein_kernel",
]  # fmt: skip

check_arguments(globals(), ("ksd", "ksd_test", "stein_identity", "sobolev_identity"))
