"""Objectives: standard and adversarial training; loss = objective(model, x, y) in any loop."""

from taser._runtime import wrap_public_api

from ._awp import AWP, perturbed
from ._objective import PGD, Fast, Gaussian, Loss, Objective, Standard, one_step_pgd, teacher_kl
from ._trades_and_mart import MART, TRADES

__all__ = [
    "AWP", "MART", "OBJECTIVES", "PGD", "TRADES", "Fast", "Gaussian", "Loss", "Objective",
    "Standard", "one_step_pgd", "perturbed", "teacher_kl",
]  # fmt: skip

OBJECTIVES: dict[str, type[Objective]] = {
    "standard": Standard, "fast": Fast, "pgd": PGD, "trades": TRADES, "mart": MART,
    "gaussian": Gaussian,
}  # fmt: skip
"""Values of a recipe's `objective.name`."""

wrap_public_api(globals(), __all__)  # checks argument types, names them in errors
