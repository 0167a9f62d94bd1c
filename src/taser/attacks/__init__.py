"""Attacks: searches for a small change of the input that the model gets wrong."""

from .autoattack import autoattack
from .autoattack_part import AutoAttackPart
from .cascade import Cascade
from .losses import AttackLoss, cross_entropy, kl_divergence, kl_from, margin, squared_error
from .noise import RandomNoise
from .one_step import FGSM
from .pgd import PGD, input_gradient
from .protocol import Attack, AttackWarning, Model
from .quiet import quiet
from .restarts import LastingPGD, RestartedPGD
from .spsa import SPSA
from .threat import Norm, Threat, fraction, lengths
from .transfer import Transfer

__all__ = [
    "FGSM", "PGD", "SPSA", "Attack", "AttackLoss", "AttackWarning", "AutoAttackPart", "Cascade",
    "LastingPGD", "Model", "Norm", "RandomNoise", "RestartedPGD", "Threat", "Transfer",
    "autoattack", "cross_entropy", "fraction", "input_gradient", "kl_divergence", "kl_from",
    "lengths", "margin", "quiet", "squared_error",
]  # fmt: skip
