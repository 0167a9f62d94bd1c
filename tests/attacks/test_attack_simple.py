"""Noise, one step, transfer and cascades."""

import pytest
import torch

from attacks.victims import accuracy, digits, linear, seeded, undefended
from taser.attacks import (
    FGSM,
    Cascade,
    RandomNoise,
    RestartedPGD,
    Threat,
    Transfer,
    TransferPGD,
    margin,
)
from taser.attacks._threat import inside

THREAT = Threat("linf", 0.15)


def test_noise_is_the_worst_of_its_draws() -> None:
    x, y = digits(40)
    model, losses = undefended(), []
    for samples in (1, 30):
        moved = RandomNoise(THREAT, samples=samples)(model, x, y, generator=seeded())
        assert inside(THREAT, moved, x).all()
        losses.append(margin(model(moved), y))
    assert (losses[1] >= losses[0] - 1e-6).all()
    assert (losses[1] > losses[0]).any()


def test_noise_is_far_weaker_than_an_attack() -> None:
    x, y = digits(60)
    model = undefended()
    noise = accuracy(model, RandomNoise(THREAT)(model, x, y, generator=seeded()), y)
    assert noise > accuracy(model, RestartedPGD(THREAT)(model, x, y, generator=seeded()), y) + 0.3


def test_transfer_attacks_the_surrogate_and_never_calls_the_model() -> None:
    x, y = digits(20)

    def untouchable(_: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a transfer attack called the model")

    moved = Transfer(FGSM(THREAT), undefended())(untouchable, x, y)
    assert torch.equal(moved, FGSM(THREAT)(undefended(), x, y))
    assert Transfer(FGSM(THREAT), undefended()).threat == THREAT


def test_a_lasting_attack_goes_on_beyond_the_surrogates_boundary() -> None:
    """An attack that stops at the surrogate's boundary transfers badly."""
    x, y = digits(100)
    target, surrogate = undefended(), undefended(norm=True)
    losses, standing = [], []
    for kind in (RestartedPGD, TransferPGD):
        attack = kind(THREAT, steps=20, restarts=2)
        moved = Transfer(attack, surrogate)(target, x, y, generator=seeded())
        assert inside(THREAT, moved, x).all()
        losses.append(margin(surrogate(moved), y))
        standing.append(accuracy(target, moved, y))
    assert losses[1].median() > 2 * losses[0].median() > 0
    assert standing[1] < standing[0] - 0.1


def test_a_cascade_breaks_what_any_stage_breaks_and_spares_the_broken() -> None:
    x, y = digits(60)
    model, sizes = undefended(), []

    class Last(FGSM):
        def __call__(self, model, x, y, *, generator=None):
            sizes.append(len(x))
            return super().__call__(model, x, y, generator=generator)

    noise, pgd = RandomNoise(THREAT), RestartedPGD(THREAT, steps=10, restarts=1)
    both = Cascade("both", (pgd, noise, Last(THREAT)))
    moved = both(model, x, y, generator=seeded())
    assert inside(THREAT, moved, x).all()
    stands_alone = accuracy(model, pgd(model, x, y, generator=seeded()), y)
    assert accuracy(model, moved, y) <= stands_alone
    assert sizes[0] <= round(60 * stands_alone)


def test_stages_need_one_threat() -> None:
    with pytest.raises(ValueError, match="one threat"):
        Cascade("two", (FGSM(Threat("linf", 0.1)), FGSM(Threat("linf", 0.2))))


def test_attacks_work_on_tables() -> None:
    model, x = linear(classes=3), 5 * torch.randn(20, 6, generator=seeded())
    y = model(x).argmax(1)
    threat = Threat("l2", 3.0, low=None, high=None)
    for attack in (FGSM(threat), RandomNoise(threat), RestartedPGD(threat)):
        moved = attack(model, x, y, generator=seeded())
        assert inside(threat, moved, x).all()
        assert float(moved.abs().max()) > 1  # there is no box
