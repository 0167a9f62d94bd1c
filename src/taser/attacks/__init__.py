"""Attacks: searches for a small change of the input that makes the model wrong."""

from collections.abc import Callable
from functools import partial
from typing import get_args

from taser._runtime import wrap_public_api
from taser.probes import AttackLoss, cross_entropy, kl_divergence, kl_from, margin, squared_error

from ._attack import Attack, AttackWarning, LossAttack, Model
from ._autoattack import AutoAttackPart, Part, autoattack
from ._pgd import FGSM, PGD, RestartedPGD, TransferPGD, input_gradient
from ._random_models import Averaged
from ._simple import Cascade, RandomNoise, RaySearch, Transfer
from ._spsa import SPSA
from ._threat import Norm, Threat, fraction, lengths

__all__ = [
    "ATTACKS", "FGSM", "PGD", "SPSA", "Attack", "AttackLoss", "AttackWarning", "AutoAttackPart",
    "Averaged", "Cascade", "LossAttack", "Model", "Norm", "RandomNoise", "RaySearch",
    "RestartedPGD", "Threat", "Transfer", "TransferPGD", "autoattack", "cross_entropy", "fraction",
    "input_gradient", "kl_divergence", "kl_from", "lengths", "margin", "squared_error",
]  # fmt: skip

ATTACKS: dict[str, Callable[[Threat], Attack]] = {
    "spsa": SPSA, "spsa-strong": SPSA.strong, "pgd": RestartedPGD,
    "pgd-ce": partial(RestartedPGD, loss=cross_entropy, name="pgd-ce"),
    "fgsm": FGSM, "noise": RandomNoise,
}  # fmt: skip
"""Attacks by name, for recipes and the command line, beside AutoAttack and its parts."""
ATTACK_NAMES = ("autoattack", *ATTACKS, *get_args(Part))

wrap_public_api(globals(), __all__)  # checks argument types, names them in errors
