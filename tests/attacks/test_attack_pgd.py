"""PGD, for training and with restarts, against models whose worst point has a closed form."""

from dataclasses import replace

import pytest
import torch

from attacks.victims import accuracy, digits, linear, seeded, undefended
from taser.attacks import (
    FGSM,
    PGD,
    LossAttack,
    Norm,
    RestartedPGD,
    Threat,
    cross_entropy,
    kl_from,
    margin,
)
from taser.attacks._threat import inside
from taser.models import Wrapped


def worst_margin(norm: Norm, epsilon: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, y and the largest margin in the ball of a linear model: m(x) + ε‖w‖ in the dual norm."""
    model, x = linear(), torch.randn(8, 6, generator=seeded())
    y = torch.zeros(8, dtype=torch.int64)
    w = model.weight[1] - model.weight[0]  # type: ignore[operator, index]
    dual = w.abs().sum() if norm == "linf" else w.norm()
    return x, y, (margin(model(x), y) + epsilon * dual).detach()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_attacks_find_the_worst_point_of_a_linear_model(norm: Norm) -> None:
    threat = Threat(norm, 0.5, low=None, high=None)
    x, y, worst = worst_margin(norm, 0.5)
    model = linear()
    attacks = [
        PGD(threat, steps=40, step_size=0.1),
        PGD(threat, steps=40, step_size=0.1, start="gaussian"),
        PGD(threat, steps=40, step_size=0.1, start="clean"),
        FGSM(threat),
    ]
    for attack in attacks:
        moved = attack(model, x, y, generator=seeded())
        torch.testing.assert_close(margin(model(moved), y), worst, rtol=1e-4, atol=1e-4)
        assert inside(threat, moved, x).all()


def test_pgd_never_leaves_the_box() -> None:
    x, y = digits(20)
    threat = Threat("linf", 0.4)
    moved = PGD(threat, step_size=0.3)(undefended(), x, y, generator=seeded())
    assert inside(threat, moved, x).all()
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1


def test_pgd_is_the_same_with_the_same_generator() -> None:
    x, y = digits(10)
    one, two, other = (PGD()(undefended(), x, y, generator=seeded(s)) for s in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_the_loss_of_the_call_takes_the_place_of_the_attacks_own() -> None:
    x, y = digits(10)
    model, threat = undefended(), Threat("linf", 0.05)
    kl = kl_from(model(x))
    for attack in (PGD(threat), FGSM(threat), RestartedPGD(threat, steps=3, restarts=1)):
        assert isinstance(attack, LossAttack)
        own = replace(attack, loss=kl)(model, x, y, generator=seeded())
        assert torch.equal(attack(model, x, y, loss=kl, generator=seeded()), own)
        assert not torch.equal(attack(model, x, y, generator=seeded()), own)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0}, {"step_size": 0.0}, {"step_size": float("nan")}, {"step_size": 2.0},
        {"step_size": float("inf")}, {"start": "anywhere"},
    ],
)  # fmt: skip
def test_pgd_refuses_wrong_options(options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        PGD(**options)


@pytest.mark.parametrize("loss", [margin, cross_entropy])
def test_restarts_break_what_one_step_leaves(loss: object) -> None:
    x, y = digits(100)
    threat = Threat("linf", 0.12)
    model = undefended()
    many = RestartedPGD(threat, loss=loss)(model, x, y, generator=seeded())  # type: ignore[arg-type]
    assert accuracy(model, many, y) < accuracy(model, FGSM(threat)(model, x, y), y)
    assert inside(threat, many, x).all()


def test_restarts_return_the_worst_point_of_robust_examples_too() -> None:
    x, y = digits(30)
    model = undefended()
    for attack in (RestartedPGD(Threat("linf", 0.02)), RestartedPGD(random_start=False)):
        moved = attack(model, x, y, generator=seeded())
        assert (margin(model(moved), y) >= margin(model(x), y)).all()


def test_broken_examples_leave_at_once() -> None:
    x, y = digits(50)
    evaluated: list[int] = []

    def counting(inputs: torch.Tensor) -> torch.Tensor:
        evaluated.append(len(inputs))
        return undefended()(inputs)

    RestartedPGD(Threat("linf", 0.3), steps=20, restarts=3)(
        Wrapped(counting, undefended()), x, y, generator=seeded()
    )
    assert evaluated == sorted(evaluated, reverse=True)
    assert sum(evaluated) < 0.3 * 50 * 20  # one start of all examples would be 1000 evaluations


def test_an_example_that_is_wrong_already_is_left_as_it_is() -> None:
    x, y = digits(20)
    wrong = (y + 1) % 10
    assert torch.equal(RestartedPGD()(undefended(), x, wrong, generator=seeded()), x)


def test_from_x_itself_one_ascent_is_enough() -> None:
    x, y = digits(20)
    evaluated: list[int] = []

    def counting(inputs: torch.Tensor) -> torch.Tensor:
        evaluated.append(len(inputs))
        return undefended()(inputs)

    attack = RestartedPGD(Threat("linf", 0.01), steps=4, restarts=3, random_start=False)
    attack(Wrapped(counting, undefended()), x, y)
    assert len(evaluated) == 1 + 4 + 1  # the clean inputs, four steps, the last point
    assert attack.passes == 3 * 4 + 1


@pytest.mark.parametrize(
    "options", [{"steps": 0}, {"restarts": 0}, {"step_size": -1.0}, {"step_size": 2.0}]
)
def test_restarts_refuse_wrong_options(options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        RestartedPGD(**options)


def test_a_step_grows_with_the_ball() -> None:
    """2.5·ε/steps: 2/255 as published for ten steps within 8/255, and the edge of a wider ball."""
    x, y = digits(20)
    model = undefended()
    draw = lambda: torch.Generator().manual_seed(0)  # noqa: E731
    published = PGD(Threat("linf", "8/255"), 10, 2 / 255)
    torch.testing.assert_close(
        PGD(Threat("linf", "8/255"))(model, x, y, generator=draw()),
        published(model, x, y, generator=draw()),
    )
    free = Threat("linf", 0.3, low=None, high=None)
    moved = PGD(free, start="clean")(model, x, y)
    assert float((moved - x).abs().max()) == pytest.approx(0.3)
