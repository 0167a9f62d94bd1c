"""Regularisers: TASER in its forms, and the gradient penalties that it is compared with."""

from ._gradients import GradientPenalty, JacobianPenalty
from ._taser import Regulariser, Taser

__all__ = ["GradientPenalty", "JacobianPenalty", "Regulariser", "Taser"]
