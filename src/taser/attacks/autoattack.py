"""AutoAttack (Croce & Hein, 2020), by the package pyautoattack."""

import torch
from torch import Tensor

from taser.stein.guards import untouched_randomness

from .autoattack_part import AutoAttackPart
from .cascade import Cascade
from .package_log import LOGGER, log_as_warnings
from .protocol import Attack, Model
from .quiet import quiet
from .restarts import RestartedPGD
from .spsa import SPSA
from .threat import Threat


def autoattack(
    threat: Threat | None = None, *, classes: int = 10, images: bool = True, seed: int = 0
) -> Cascade:
    """The standard version: APGD-CE, targeted APGD-DLR, targeted FAB, Square.

    Targeted DLR needs four classes and Square with ℓ2 needs images: where they cannot be had,
    others take their place, and the cascade's note says which.
    """
    threat = threat or Threat()
    if classes < 2:
        raise ValueError(f"AutoAttack needs at least two classes; got {classes}")
    notes = []
    dlr: Attack = AutoAttackPart("apgd-t", threat, seed)
    if classes == 3:
        dlr = AutoAttackPart("apgd-dlr", threat, seed)
        notes.append("targeted DLR needs four classes: untargeted APGD-DLR was run instead")
    elif classes == 2:
        dlr = RestartedPGD(threat, steps=100, name="pgd-margin")
        notes.append("DLR needs three classes: PGD on the margin was run instead of APGD-T")
    last: Attack = AutoAttackPart("square", threat, seed)
    if not images and threat.norm == "l2":
        last = SPSA.strong(threat)
        notes.append("Square with ℓ2 needs images: strong SPSA was run instead")
    ce, fab = AutoAttackPart("apgd-ce", threat, seed), AutoAttackPart("fab-t", threat, seed)
    stages = (ce, dlr, fab, last)
    return Cascade("autoattack", stages, note="; ".join(notes))


def check_with_package(model: Model, x: Tensor, y: Tensor) -> None:
    """The package's own questions about a model, as :class:`AttackWarning`s.

    Does it answer at random, with probabilities, or by an optimisation of its own?
    """
    from pyautoattack import checks

    def copied(x: Tensor) -> Tensor:
        return model(x.clone())  # which may work in place

    with quiet(model), untouched_randomness(x.device), log_as_warnings(), torch.no_grad():
        checks.check_randomized(copied, x, y, logger=LOGGER)
        checks.check_range_output(copied, x, logger=LOGGER)
        checks.funcs.update(dict.fromkeys(checks.funcs, 0))  # it never forgets a model by itself
        checks.check_dynamic(copied, x, logger=LOGGER)
