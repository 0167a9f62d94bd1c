"""Attacks by the names that recipes and the command line use."""

from collections.abc import Callable
from typing import get_args

from ._attack import Attack, cross_entropy
from ._autoattack import AutoAttackPart, Part, autoattack
from ._pgd import FGSM, RestartedPGD
from ._simple import RandomNoise
from ._spsa import SPSA
from ._threat import Threat

OURS: dict[str, Callable[[Threat], Attack]] = {
    "spsa": SPSA,
    "spsa-strong": SPSA.strong,
    "pgd": RestartedPGD,
    "pgd-ce": lambda threat: RestartedPGD(threat, loss=cross_entropy, name="pgd-ce"),
    "fgsm": FGSM,
    "noise": RandomNoise,
}
NAMES = ("autoattack", *OURS, *get_args(Part))


def named_attack(name: str, threat: Threat, *, classes: int, images: bool, seed: int) -> Attack:
    """The attack called `name`, for a model with so many classes.

    images: whether inputs are (C, H, W); seed: AutoAttack's own.
    """
    if name in OURS:
        return OURS[name](threat)
    if name == "autoattack":
        return autoattack(threat, classes=classes, images=images, seed=seed)
    if name not in get_args(Part):
        raise ValueError(f"an attack should be one of {', '.join(NAMES)}; got {name!r}")
    if (name == "apgd-t" and classes < 4) or (name == "apgd-dlr" and classes < 3):
        raise ValueError(f"{name} needs more than {classes} classes: take 'autoattack' or 'pgd'")
    if name == "square" and threat.norm == "l2" and not images:
        raise ValueError("square in ℓ2 is for images, (C, H, W): take 'autoattack' or 'spsa'")
    return AutoAttackPart(name, threat, seed)  # type: ignore[arg-type]
