"""Objectives: six base methods, what TASER adds to them, and what it is compared with.

The two lines of a loop are loss = objective(model, x, y), and
loss = loss + weight * regulariser(model, x, y).
"""

from .controls import GradientPenalty, JacobianPenalty
from .mart import MART
from .objective import Loss, Objective
from .pgd import PGD
from .standard import Standard
from .taser import Regulariser, Taser
from .teacher import teacher_kl
from .trades import TRADES
from .weight_perturbation import AWP, perturbed

__all__ = [
    "AWP", "MART", "PGD", "TRADES", "GradientPenalty", "JacobianPenalty", "Loss", "Objective",
    "Regulariser", "Standard", "Taser", "perturbed", "teacher_kl",
]  # fmt: skip
