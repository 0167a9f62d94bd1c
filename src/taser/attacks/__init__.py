"""Attacks: searches for a small change of the input that the model gets wrong."""

from .losses import AttackLoss, cross_entropy, kl_from, margin, squared_error
from .pgd import PGD, input_gradient
from .quiet import quiet
from .threat import Norm, Threat, fraction, lengths

__all__ = [
    "PGD", "AttackLoss", "Norm", "Threat", "cross_entropy", "fraction", "input_gradient",
    "kl_from", "lengths", "margin", "quiet", "squared_error",
]  # fmt: skip
