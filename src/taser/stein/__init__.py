"""The Stein operator: directions, residuals by four backends, the penalty, the identities."""

from . import identities
from .directions import directions
from .guards import UnsupportedLayer
from .penalty import SteinPenalty
from .record import Calibration, Record
from .residual import stein_residual
from .shared import SharedPass

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
