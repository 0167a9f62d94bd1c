"""What λ is a multiple of."""

from pathlib import Path

import pytest
import torch
from small_runs import MLP, lines, small

from taser.regularisers import Taser
from taser.scores import sigma_of
from taser.training import Config, train
from taser.training._build import Setup, set_up, unit_of
from taser.training._step import gradient_norm, gradient_ratio

TASER = {"name": "taser", "ramp": 0.0}


def test_units_of_the_penalty(tmp_path: Path) -> None:
    """ "noise" is σ²R, "ball" ε²σ²R and "paper" R/16, so λ is λ·σ² or λ/16 in the other."""
    found = {}
    steepest = {**TASER, "at": "steepest", "center": "none"}
    for unit in ("raw", "noise", "ball", "paper"):
        train(small(regulariser={**steepest, "unit": unit, "weight": 1e-9}), tmp_path / unit)
        found[unit] = lines(tmp_path / unit, "train")[0]["penalty"]
    assert found["noise"] == pytest.approx(found["raw"] * sigma_of(50) ** 2, rel=1e-6)
    epsilon = small().objective.epsilon
    assert found["ball"] == pytest.approx(found["noise"] * epsilon**2, rel=1e-6)
    assert found["paper"] == pytest.approx(found["raw"] / 16, rel=1e-6)


def test_the_ball_of_the_norm() -> None:
    """λ = 1: a margin that moves by one inside the ball costs one, in ℓ2 as well."""
    found = {}
    for norm in ("linf", "l2"):
        steepest = {**TASER, "at": "steepest", "center": "none", "unit": "ball", "sigma": 0.2}
        objective = {"name": "standard", "norm": norm, "epsilon": 0.5}
        found[norm] = set_up(small(regulariser=steepest, objective=objective)).learner.unit
    assert found["linf"] == pytest.approx((0.5 * 0.2) ** 2)
    assert found["l2"] == pytest.approx((0.5 * 0.2) ** 2 / 64)
    drawn = small(regulariser={**TASER, "unit": "ball", "at": "paired"})
    with pytest.raises(ValueError, match=r"unit=ball is for regulariser.at=steepest; with at=pair"):
        set_up(drawn)


def test_a_noise_level_of_one_s_own(tmp_path: Path) -> None:
    setup = set_up(small(regulariser={**TASER, "unit": "noise", "sigma": 0.2}))
    assert setup.learner.unit == pytest.approx(0.04)
    gaussian = small(regulariser={**TASER, "unit": "noise", "score": "gaussian"})
    with pytest.raises(ValueError, match=r"unit=noise needs a score at a noise level"):
        train(gaussian, tmp_path)


def test_units_are_for_taser_alone() -> None:
    config = small(regulariser={"name": "gradient", "unit": "noise"}).regulariser
    assert unit_of(config, None, 0.1) == 1.0
    assert set_up(small(regulariser={"name": "gradient", "unit": "noise"})).learner.unit == 1.0


def exact(**options: object) -> Config:
    """A penalty without draws: the Gaussian's score at the clean points."""
    regulariser = {**TASER, "score": "gaussian", "at": "clean", "unit": "ratio", "weight": 0.5,
                   "fraction": 1.0}  # fmt: skip
    return small(model={**MLP, "activation": "silu"}, regulariser={**regulariser, **options})


def ratio(setup: Setup) -> float:
    batch = next(iter(setup.batches))
    return gradient_ratio(setup.learner, batch.x, batch.y, None, torch.Generator())


def test_ratio_makes_the_gradients_as_large_as_it_says() -> None:
    """‖∇ λR‖ = ρ ‖∇ L‖ with λ = ρ · ratio."""
    setup = set_up(exact())
    value = ratio(setup)
    setup.batches.position = 0
    batch = next(iter(setup.batches))
    module, regulariser = setup.learner.module, setup.learner.regulariser
    assert isinstance(regulariser, Taser)
    base = setup.learner.objective(module, batch.x, batch.y)
    penalty = regulariser(module, batch.x, batch.y)
    scaled = gradient_norm(module, 0.5 * value * penalty)
    assert scaled == pytest.approx(0.5 * gradient_norm(module, base), rel=1e-5)


def test_the_measured_ratio_is_the_weight(tmp_path: Path) -> None:
    """Measured in the first step alone, since there is no ramp, and kept."""
    config = exact()
    train(config, tmp_path)
    weights = [line["weight"] for line in lines(tmp_path, "train")]
    assert weights == pytest.approx([0.5 * ratio(set_up(config))] * 2, rel=1e-6)


def test_the_ratio_is_of_the_whole_penalty() -> None:
    """Whether it is computed at each step or at each third, the ratio is that of R itself."""
    expected = ratio(set_up(exact()))
    setup = set_up(exact(every=3))
    for calls in range(4):
        setup.learner.regulariser.penalty.calls = calls  # type: ignore[union-attr]
        setup.batches.position = 0
        assert ratio(setup) == pytest.approx(expected, rel=1e-6)


def test_the_ratio_of_a_batch_in_parts_is_measured_on_the_first() -> None:
    """The whole may not fit in memory, which is why it is taken in parts."""
    setup = set_up(exact())
    batch = next(iter(setup.batches))
    half = (batch.x[:32], batch.y[:32], None, torch.Generator())
    expected = gradient_ratio(setup.learner, *half)
    setup.learner.parts = 2
    setup.batches.position = 0
    assert ratio(setup) == pytest.approx(expected, rel=1e-6)


def test_measuring_leaves_the_run_as_it_was() -> None:
    """Statistics, gradients and a running centre are the training's."""
    setup = set_up(small(regulariser={**TASER, "unit": "ratio", "center": "running"}))
    state = {k: v.clone() for k, v in setup.learner.module.state_dict().items()}
    ratio(setup)
    centre = setup.learner.regulariser.penalty.centre  # type: ignore[union-attr]
    assert bool(centre.value.isnan())  # it has seen no training batch yet
    assert all(torch.equal(v, state[k]) for k, v in setup.learner.module.state_dict().items())
    assert all(p.grad is None for p in setup.learner.module.parameters())
