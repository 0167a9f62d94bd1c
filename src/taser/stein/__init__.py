"""The Stein operator: directions, residuals by four backends, the penalty, the identities."""

from . import identities
from ._backends import directions
from ._batchnorm import SharedPass
from ._layer_checks import UnsupportedLayer
from ._penalty import Calibration, Record, SteinPenalty
from ._residual import stein_residual

__all__ = [
    "Calibration",
    "Record",
    "SharedPass",
    "SteinPenalty",
    "UnsupportedLayer",
    "directions",
    "identities",
    "stein_residual",
]
