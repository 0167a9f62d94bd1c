"""The ball, its projection and its steepest direction."""

import pytest
import torch

from attacks.victims import seeded
from taser.attacks import Norm, Threat, fraction
from taser.attacks._threat import inside, shown

NORMS: tuple[Norm, ...] = ("linf", "l2", "l1")


def points(n: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    generator = seeded()
    x = torch.rand(n, 3, 4, 4, generator=generator)
    return x, x + torch.randn(x.shape, generator=generator)


@pytest.mark.parametrize("norm", NORMS)
def test_projection_lands_in_ball_and_box_and_stays_there(norm: Norm) -> None:
    threat = Threat(norm, 0.3)
    x, far = points()
    near = threat.project(far, x)
    assert inside(threat, near, x).all()
    assert not inside(threat, far, x).any()
    torch.testing.assert_close(threat.project(near, x), near)


@pytest.mark.parametrize("norm", NORMS)
def test_projection_into_the_ball_is_the_nearest_point(norm: Norm) -> None:
    threat = Threat(norm, 0.3, low=None, high=None)
    x, far = points(20)
    near = threat.project(far, x)
    distance = (far - near).flatten(1).norm(dim=1)
    for seed in range(20):  # no other point of the ball is nearer
        other = threat.random(x, seeded(seed))
        assert ((far - other).flatten(1).norm(dim=1) >= distance - 1e-6).all()
    within = x + 0.1 * (near - x)
    torch.testing.assert_close(threat.project(within, x), within)  # what is inside stays


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2), ("l1", torch.inf)])
def test_ascent_reaches_the_dual_norm(norm: Norm, dual: float) -> None:
    # max g·v over ‖v‖ ≤ 1 is the dual norm of g
    threat = Threat(norm, 1.0, low=None, high=None)
    gradient = torch.randn(10, 3, 4, generator=seeded())
    v = threat.ascent(gradient)
    assert (threat.distance(v, torch.zeros_like(v)) <= 1 + 1e-6).all()
    reached = (gradient * v).flatten(1).sum(1)
    torch.testing.assert_close(reached, gradient.flatten(1).norm(p=dual, dim=1))


@pytest.mark.parametrize("norm", NORMS)
def test_random_points_fill_the_ball_evenly(norm: Norm) -> None:
    d, n = 3, 20_000
    threat = Threat(norm, 0.5, low=None, high=None)
    x = torch.zeros(n, d)
    moved = threat.random(x, seeded())
    radius = threat.distance(moved, x) / 0.5
    assert float(radius.max()) <= 1 + 1e-6
    # the radius of an even draw has P[r ≤ t] = t^d, whose mean is d/(d + 1) and variance below 1/12
    assert float(radius.mean()) == pytest.approx(d / (d + 1), abs=4 * (1 / 12 / n) ** 0.5)
    assert moved.mean(0).abs().max() < 4 * 0.5 / n**0.5  # no direction is preferred


def test_random_points_keep_to_the_box() -> None:
    x = torch.ones(100, 5)
    assert float(Threat("linf", 0.2).random(x, seeded()).max()) <= 1.0


@pytest.mark.parametrize("norm", NORMS)
def test_inside_forgives_rounding_and_nothing_else(norm: Norm) -> None:
    threat = Threat(norm, 8 / 255)
    x = torch.full((1, 4), 0.5)
    step = threat.ascent(torch.ones_like(x))
    for factor, allowed in ((1.0, True), (1.0 + 1e-6, True), (1.001, False)):
        assert bool(inside(threat, x + factor * threat.epsilon * step, x)) is allowed
    edge = torch.zeros(1, 4)
    assert not inside(threat, edge - 0.001, edge).any()  # in the ball, not in the box
    assert not inside(threat, torch.full_like(x, torch.nan), x).any()


def test_fractions_are_read_and_shown() -> None:
    assert Threat("linf", "8/255").epsilon == 8 / 255  # type: ignore[arg-type]
    assert str(Threat("l2", 128 / 255)) == "ℓ2 ε=128/255"
    assert (shown(8 / 255), shown(0.3)) == ("8/255", "0.3")
    with pytest.raises(ValueError, match="8/255"):
        fraction("a lot")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "l3"}, "norm should be"),
        ({"epsilon": 0.0}, "positive"),
        ({"epsilon": 8.0}, "8/255"),
        ({"low": None}, "low and high"),
        ({"high": None}, "low and high"),
        ({"low": 1.0, "high": 0.0}, "low and high"),
        ({"low": 1.0, "high": 1.0}, "low and high"),
    ],
)
def test_wrong_threats_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Threat(**options)


def test_tables_may_have_any_epsilon() -> None:
    assert Threat("linf", 8.0, low=None, high=None).epsilon == 8.0


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": float("nan")}, {"epsilon": float("inf")}, {"low": float("nan")},
        {"high": float("nan")}, {"low": 1.0, "high": 0.0}, {"high": float("inf")}, {"low": None},
    ],
)  # fmt: skip
def test_a_threat_that_cannot_be_is_refused(options: dict) -> None:
    with pytest.raises(ValueError, match=r"epsilon should be|low and high should be"):
        Threat("l2", **({"epsilon": 0.5} | options))
