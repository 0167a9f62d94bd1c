"""Models whose first layer works in place are attacked and evaluated like others."""

import pytest
import torch
from torch import nn

from attacks.victims import digits, seeded, undefended
from taser.attacks import (
    FGSM,
    PGD,
    SPSA,
    Attack,
    AutoAttackPart,
    Cascade,
    RandomNoise,
    RestartedPGD,
    Threat,
)
from taser.evaluation import evaluate
from taser.evaluation._evaluate import accuracy_curve

SMALL = Threat("linf", 0.02)
PARTS = [AutoAttackPart(part, SMALL) for part in ("apgd-ce", "apgd-t", "fab-t")]


class InPlace(nn.Module):
    """Normalises its input in place."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.inner, self.copies = undefended(), copies

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone() if self.copies else x
        return self.inner(x.sub_(0.1).mul_(1.5))


@pytest.mark.parametrize(
    "attack",
    [PGD(), FGSM(), RestartedPGD(steps=3, restarts=2), RandomNoise(SMALL),
     SPSA(SMALL, iterations=2), *PARTS, Cascade("two", (FGSM(SMALL), PARTS[0]))],
    ids=str,
)  # fmt: skip
def test_attacks(attack: Attack) -> None:
    x, y = digits(3)
    kept = x.clone()
    found, wanted = (attack(InPlace(copies), x, y, generator=seeded()) for copies in (False, True))
    assert torch.equal(found, wanted)
    assert torch.equal(x, kept)


def test_evaluation_and_curve() -> None:
    x, y = digits(20)
    kept = x.clone()
    attacks = ("noise", "pgd")
    found, wanted = (
        evaluate(InPlace(copies), x, y, threat=SMALL, attacks=attacks) for copies in (False, True)
    )
    assert torch.equal(found.robust, wanted.robust)
    curves = [accuracy_curve(InPlace(copies), x, y, threat=SMALL) for copies in (False, True)]
    assert curves[0] == curves[1]
    assert curves[0].accuracies[-1] < curves[0].accuracies[0]
    assert torch.equal(x, kept)
