"""Regularisers: TASER in its forms, and the gradient penalties that it is compared with."""

from taser.stein import Regulariser

from ._gradients import GradientNorm, Jacobian
from ._taser import Taser

__all__ = ["GradientNorm", "Jacobian", "Regulariser", "Taser"]
