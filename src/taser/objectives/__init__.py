"""Objectives: standard and adversarial training; loss = objective(model, x, y) in any loop."""

from ._adversarial import PGD, Standard
from ._awp import AWP, perturbed
from ._mart import MART
from ._objective import Loss, Objective, teacher_kl
from ._trades import TRADES

__all__ = [
    "AWP", "MART", "PGD", "TRADES", "Loss", "Objective",
    "Standard", "perturbed", "teacher_kl",
]  # fmt: skip
