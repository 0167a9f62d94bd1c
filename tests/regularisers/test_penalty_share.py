"""A penalty that is too small or too large to matter is reported once, with a better weight."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from taser.regularisers import PenaltyShare
from taser.training import read_recipe, train


def steps(watch: PenaltyShare, n: int, loss: float, penalty: float, weight: float) -> Tensor:
    numbers = torch.tensor(loss), torch.tensor(penalty, requires_grad=True)
    for _ in range(n):
        term = watch(*numbers, weight)
    return term


@pytest.mark.parametrize(
    ("penalty", "weight", "message"),
    [
        (
            1.0,
            0.001,
            r"is 0\.05% of the loss \(mean of 50 steps\).*a weight of 0\.6 instead of 0.001",
        ),
        (0.002, 2.0, r"is 0\.20% of the loss.*weight of 300"),
        (100.0, 1.0, r"is 50 times the loss.*dominates the loss.*weight of 0\.006 instead of 1"),
    ],
)
def test_far_too_small_and_far_too_large(penalty: float, weight: float, message: str) -> None:
    watch = PenaltyShare()
    steps(watch, 49, 2.0, penalty, weight)
    with pytest.warns(UserWarning, match=message):
        term = steps(watch, 1, 2.0, penalty, weight)
    assert float(term.detach()) == pytest.approx(weight * penalty)
    assert term.requires_grad
    steps(watch, 200, 2.0, penalty, weight)  # filterwarnings = error: once


def test_the_suggested_weight_is_right() -> None:
    watch = PenaltyShare()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps(watch, 50, 2.0, 0.01, 0.1)
    assert "a weight of 60 instead of 0.1" in str(caught[0].message)
    assert [warning.filename for warning in caught] == [__file__]
    other = PenaltyShare()
    steps(other, 50, 2.0, 0.01, 60.0)
    assert other.share == pytest.approx(0.3)


@pytest.mark.parametrize("share", [0.012, 0.3, 1.0, 9.0])
def test_a_penalty_that_matters_is_not_reported(share: float) -> None:
    steps(PenaltyShare(), 200, 2.0, 2.0 * share, 1.0)


def test_no_weight_and_one_that_changes_are_not_reported() -> None:
    steps(PenaltyShare(), 100, 2.0, 1.0, 0.0)
    watch = PenaltyShare()
    for step in range(200):  # a ramp
        steps(watch, 1, 2.0, 1.0, 1e-6 * step)


@pytest.mark.parametrize("weight", [1e-7, 0.3])
def test_training_says_so(weight: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    overrides = [
        "data.examples=300", "loop.epochs=2", "loop.batch=10", "loop.threads=1", "model.width=2",
        f"regulariser.weight={weight}", "regulariser.name=gradient-norm", "validation.examples=20",
        "regulariser.ramp=0",
    ]  # fmt: skip
    train(read_recipe("digits/standard", overrides), tmp_path / "run")
    said = [r.getMessage() for r in caplog.records if "times its weight" in r.getMessage()]
    assert len(said) == (weight == 1e-7)
