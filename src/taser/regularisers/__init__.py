"""Regularisers: TASER in its forms, and gradient penalties to compare it with."""

from taser._runtime import wrap_public_api
from taser.stein import Regulariser

from ._gradients import GradientNorm, Jacobian
from ._penalty_share import PenaltyShare
from ._target_loss import TargetLoss
from ._taser import Taser

__all__ = [
    "REGULARISERS", "GradientNorm", "Jacobian", "PenaltyShare", "Regulariser", "TargetLoss",
    "Taser",
]  # fmt: skip

REGULARISERS: dict[str, type[Regulariser]] = {
    "taser": Taser, "gradient-norm": GradientNorm, "jacobian": Jacobian
}  # fmt: skip
"""Values of a recipe's `regulariser.name`, besides "none"."""

wrap_public_api(globals(), __all__)  # checks argument types, names them in errors
