"""What λ is a multiple of."""

from pathlib import Path
from typing import get_args

import pytest
import torch
from small_runs import MLP, lines, small

import taser
from taser.regularisers import Taser
from taser.regularisers._taser import FormName
from taser.training import Config, train
from taser.training._build import Setup, set_up
from taser.training._step import gradient_norm, gradient_ratio

TASER = {"name": "taser", "ramp": 0.0}


def test_a_form_fixes_the_unit_of_the_weight() -> None:
    """ "steepest" is ε²σ²R, forms with drawn noise σ²R, "paper" R/16."""
    x = torch.zeros(2, 1, 8, 8)
    epsilon, found = small().objective.epsilon, {}
    for form in get_args(FormName):
        setup = set_up(small(regulariser={**TASER, "form": form, "sigma": 0.2}))
        assert isinstance(setup.learner.regulariser, Taser)
        found[form] = setup.learner.regulariser.unit(x)
    expected = {"steepest": (epsilon * 0.2) ** 2, "paper": 1 / 16}
    assert found == pytest.approx({form: expected.get(form, 0.04) for form in found})


def test_the_ball_of_the_norm() -> None:
    """λ = 1: a margin that moves by one inside the ball costs one, in ℓ2 as well."""
    found = {}
    for norm in ("linf", "l2"):
        objective = {"name": "standard", "norm": norm, "epsilon": 0.5}
        setup = set_up(small(regulariser={**TASER, "sigma": 0.2}, objective=objective))
        assert isinstance(setup.learner.regulariser, Taser)
        found[norm] = setup.learner.regulariser.unit(torch.zeros(2, 1, 8, 8))
    assert found["linf"] == pytest.approx((0.5 * 0.2) ** 2)
    assert found["l2"] == pytest.approx((0.5 * 0.2) ** 2 / 64)


def test_every_regulariser_can_be_trained_with(tmp_path: Path) -> None:
    for name in ("taser", "gradient-norm", "jacobian"):
        train(small(regulariser={"name": name, "weight": 1e-3, "fraction": 0.5}), tmp_path / name)
        assert lines(tmp_path / name, "train")[0]["penalty"] > 0


def exact(**options: object) -> Config:
    """A penalty without draws: the Gaussian's score at the clean points."""
    regulariser = {**TASER, "score": "gaussian", "form": "paper", "operator": "first_order",
                   "unit": "ratio", "weight": 0.5}  # fmt: skip
    return small(model={**MLP, "activation": "silu"}, regulariser={**regulariser, **options})


def ratio(setup: Setup) -> float:
    batch = next(iter(setup.batches))
    return gradient_ratio(setup.learner, batch.x, batch.y, torch.Generator())


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
        setup.learner.regulariser.calls = calls  # type: ignore[union-attr]
        setup.batches.position = 0
        assert ratio(setup) == pytest.approx(expected, rel=1e-6)


def test_the_ratio_of_a_batch_in_parts_is_measured_on_the_first() -> None:
    """The whole may not fit in memory, which is why it is taken in parts."""
    setup = set_up(exact())
    batch = next(iter(setup.batches))
    half = (batch.x[:32], batch.y[:32], torch.Generator())
    expected = gradient_ratio(setup.learner, *half)
    setup.learner.accumulate = 2
    setup.batches.position = 0
    assert ratio(setup) == pytest.approx(expected, rel=1e-6)


def test_measuring_leaves_the_run_as_it_was() -> None:
    """Statistics, gradients and a running centre are the training's."""
    setup = set_up(small(regulariser={**TASER, "unit": "ratio", "center": "running"}))
    state = {k: v.clone() for k, v in setup.learner.module.state_dict().items()}
    ratio(setup)
    centre = setup.learner.regulariser.center  # type: ignore[union-attr]
    assert bool(centre.value.isnan())  # it has seen no training batch yet
    assert all(torch.equal(v, state[k]) for k, v in setup.learner.module.state_dict().items())
    assert all(p.grad is None for p in setup.learner.module.parameters())


def test_a_target_and_averaged_weights_resume_to_the_bit(tmp_path: Path) -> None:
    """λ by itself, in the middle of an epoch; the average is kept in the checkpoint too."""
    config = small(
        regulariser={"name": "taser", "target_loss": 2.3, "weight": 0.01},
        loop={"epochs": 2, "batch": 32, "ema": 0.9, "save_minutes": 0.0},
    )

    def stop(done: int, _total: int, _label: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "resumed", report=stop)
    train(config, tmp_path / "resumed")
    for name in ("last.safetensors", "best.safetensors", "log.jsonl"):
        found = [(tmp_path / run / name).read_bytes() for run in ("whole", "resumed")]
        assert found[0] == found[1], name
    weights = [line["weight"] for line in lines(tmp_path / "resumed", "train")]
    assert len(set(weights)) > 4  # λ moved
    other = small(regulariser={"target_loss": 1.0}, loop={"epochs": 2})
    with pytest.raises(ValueError, match=r"regulariser\.target_loss was 2\.3, is 1\.0"):
        train(other, tmp_path / "resumed")
    with pytest.raises(ValueError, match="target_loss decides λ itself"):
        small(regulariser={"target_loss": 1.0, "unit": "ratio"})


@pytest.mark.parametrize(("target", "rises"), [(100.0, True), (0.01, False)])
def test_lambda_by_itself_in_a_loop_of_ones_own(target: float, rises: bool) -> None:
    """Higher while the loss is below the target, lower while it is above; saved as a number."""
    torch.manual_seed(0)
    model = taser.models.build("mlp", classes=3, shape=(4,), width=8, activation="silu")
    score = taser.scores.Gaussian.fit(torch.randn(64, 4)).at(sigma=1.0)
    robust = taser.Taser(score, threat=taser.Threat("linf", 0.1, None, None)).attach(model)
    weight = taser.regularisers.TargetLoss(target, start=0.01, rate=0.1)
    weight.weight = 1.0
    optimiser, found = torch.optim.SGD(model.parameters(), 0.01), [1.0]
    for _ in range(5):
        x, y = torch.randn(16, 4), torch.arange(16) % 3
        loss = torch.nn.functional.cross_entropy(model(x), y)
        found.append(weight(loss))
        optimiser.zero_grad()
        (loss + found[-1] * robust(model, x, y)).backward()
        optimiser.step()
    assert found == sorted(found, reverse=not rises)
    assert found[0] != found[-1]
    again = taser.regularisers.TargetLoss(target, start=0.01, rate=0.1)
    again.weight = weight.weight
    assert again(loss) == weight(loss)
