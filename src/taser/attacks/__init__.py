"""Attacks: searches for a small change of the input that the model gets wrong."""

from ._attack import (
    Attack,
    AttackLoss,
    AttackWarning,
    LossAttack,
    Model,
    Norm,
    Threat,
    cross_entropy,
    fraction,
    kl_divergence,
    kl_from,
    lengths,
    margin,
    squared_error,
)  # fmt: skip
from ._autoattack import AutoAttackPart, autoattack
from ._pgd import FGSM, PGD, LastingPGD, RestartedPGD, input_gradient
from ._simple import Cascade, RandomNoise, RaySearch, Transfer
from ._spsa import SPSA

__all__ = [
    "FGSM", "PGD", "SPSA", "Attack", "AttackLoss", "AttackWarning", "AutoAttackPart", "Cascade",
    "LastingPGD", "LossAttack", "Model", "Norm", "RandomNoise", "RaySearch", "RestartedPGD",
    "Threat", "Transfer", "autoattack", "cross_entropy", "fraction", "input_gradient",
    "kl_divergence", "kl_from", "lengths", "margin", "squared_error",
]  # fmt: skip
