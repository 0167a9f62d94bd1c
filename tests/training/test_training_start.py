"""What a run begins with: models of the user's, weights, a teacher."""

from pathlib import Path

import pytest
import torch
from small_runs import MLP, initial, lines, same, small, weights

from taser.training import load_trained, train

MODEL = """
from torch import nn

def tied(width=4):
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.SiLU(), second, nn.SiLU(), nn.Linear(64, 10))
"""


def test_a_model_of_the_user_s(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    mine = {"name": f"{tmp_path}/mine.py:tied", "width": None, "activation": None}
    config = small(model=mine, loop={"epochs": 2, "ema": 0.5}, teacher={"weight": 1.0})
    train(config, tmp_path / "run")
    found = load_trained(tmp_path / "run", "last", trust_code=True)
    assert found[1].weight is found[3].weight
    assert same(dict(found.state_dict()), weights(tmp_path / "run"))
    with pytest.raises(
        ValueError, match=r"model.width and model.activation are for built-in networks"
    ):
        train(small(model={**mine, "width": 4}), tmp_path / "other")


def test_fine_tuning_begins_with_the_weights_it_is_given(tmp_path: Path) -> None:
    """And BatchNorm's statistics stay, on request."""
    train(small(), tmp_path / "first")
    given = {"weights": str(tmp_path / "first" / "last.safetensors"), "freeze_norm": True}
    config = small(model=given, teacher={"weight": 1.0})
    assert same(dict(initial(config)), weights(tmp_path / "first"))
    train(config, tmp_path / "second")
    before, after = (weights(tmp_path / name) for name in ("first", "second"))
    assert all(
        torch.equal(before[name], after[name]) == ("running" in name or "num_batches" in name)
        for name in before
        if name not in ("mean", "std")
    )
    teacher = [line["teacher"] for line in lines(tmp_path / "second", "train")]
    assert abs(teacher[0]) < 1e-6 < teacher[1]  # the student leaves the teacher


def test_the_teacher_keeps_the_weights_closer_to_the_start(tmp_path: Path) -> None:
    sgd = {"name": "sgd", "rate": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    far = {}
    for alpha in (0.0, 100.0):
        config = small(
            model=MLP, teacher={"weight": alpha}, optimiser={**sgd, "clip": 1.0},
            loop={"epochs": 10},
        )  # fmt: skip
        train(config, tmp_path / str(alpha))
        before, after = initial(config), weights(tmp_path / str(alpha))
        far[alpha] = sum(float((after[name] - before[name]).square().sum()) for name in before)
    assert far[100.0] < 0.5 * far[0.0]
