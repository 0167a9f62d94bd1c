"""What λ is a multiple of."""

from pathlib import Path
from typing import get_args

import pytest
import torch
from small_runs import lines, small

import taser
from taser.regularisers import Taser
from taser.regularisers._taser import FormName
from taser.training import train
from taser.training._build import set_up

TASER = {"name": "taser", "ramp": 0.0}


def test_a_form_fixes_the_unit_of_the_weight() -> None:
    """ "steepest" is ε²σ²R, forms with drawn noise σ²R, "paper" R/16."""
    x = torch.zeros(2, 1, 8, 8)
    epsilon, found = small().objective.epsilon, {}
    for form in get_args(FormName):
        setup = set_up(small(regulariser={**TASER, "form": form, "sigma": 0.2}))
        assert isinstance(setup.learner.regulariser, Taser)
        found[form] = setup.learner.regulariser.weight_scale(x)
    expected = {"steepest": (epsilon * 0.2) ** 2, "paper": 1 / 16}
    assert found == pytest.approx({form: expected.get(form, 0.04) for form in found})


def test_the_ball_of_the_norm() -> None:
    """λ = 1: a margin that moves by one inside the ball costs one, in ℓ2 as well."""
    found = {}
    for norm in ("linf", "l2"):
        objective = {"name": "standard", "norm": norm, "epsilon": 0.5}
        setup = set_up(small(regulariser={**TASER, "sigma": 0.2}, objective=objective))
        assert isinstance(setup.learner.regulariser, Taser)
        found[norm] = setup.learner.regulariser.weight_scale(torch.zeros(2, 1, 8, 8))
    assert found["linf"] == pytest.approx((0.5 * 0.2) ** 2)
    assert found["l2"] == pytest.approx((0.5 * 0.2) ** 2 / 64)


def test_every_regulariser_can_be_trained_with(tmp_path: Path) -> None:
    for name in ("taser", "gradient-norm", "jacobian"):
        train(small(regulariser={"name": name, "weight": 1e-3, "fraction": 0.5}), tmp_path / name)
        assert lines(tmp_path / name, "train")[0]["penalty"] > 0


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
