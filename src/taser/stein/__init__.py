"""The Stein operator: residuals by four backends, the penalty, and the paper's identities."""

from taser._runtime import wrap_public_api

from . import identities
from ._batchnorm import SharedPass
from ._checks import UnsupportedLayer
from ._penalty import Record, Regulariser, SteinPenalty
from ._residual import directions, stein_residual

__all__ = [
    "Record", "Regulariser", "SharedPass", "SteinPenalty", "UnsupportedLayer",
    "directions", "identities", "stein_residual",
]  # fmt: skip

wrap_public_api(globals(), __all__)  # checks argument types, names them in errors
