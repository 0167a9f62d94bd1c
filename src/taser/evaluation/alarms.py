"""What attacks have to say of a model, besides breaking it."""

import warnings
from collections.abc import Sequence

from torch import Tensor

from taser.attacks import Attack, AutoAttackPart, Model
from taser.attacks.autoattack import check_with_package
from taser.attacks.cascade import Cascade, stages_of

from .findings import Finding
from .prepare import TRIED
from .trial import told
from .verdicts import Verdicts

HIDDEN = 0.002  # of all examples, broken by Square alone: AutoAttack's own alarm


def notes(model: Model, x: Tensor, y: Tensor, plan: Sequence[Attack]) -> list[Finding]:
    """What the attacks have to say beforehand: stages replaced, and AutoAttack's own checks."""
    notes = [Finding(a.name, a.note) for a in plan if isinstance(a, Cascade) and a.note]
    if any(isinstance(stage, AutoAttackPart) for a in plan for stage in stages_of(a)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_with_package(model, x[:TRIED], y[:TRIED])
        notes += told(caught, "autoattack")
    return notes


def hidden(found: Verdicts) -> list[Finding]:
    """AutoAttack's alarm: what needs no gradients should find nothing that gradients missed."""
    if len(found.stages) < 2 or found.stages[-1] != "square":
        return []
    share = float((found.stage == len(found.stages) - 1).sum()) / len(found.stage)
    if share <= HIDDEN:
        return []
    message = f"{100 * share:.1f} % were broken by Square alone: gradients may mislead, so audit it"
    return [Finding("square", message)]
