"""Perturbed weights inside whole runs: when, how far, and what they leave alone."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import MLP, lines, same, small, weights

from taser.objectives import Loss, Standard
from taser.training import train
from taser.training._build import set_up

AWP = {"awp": True, "awp_start": 0}


def test_awp_begins_at_its_epoch(tmp_path: Path) -> None:
    runs = {
        "never": {},
        "late": {"awp": True, "awp_start": 2},
        "now": {"awp": True, "awp_start": 1},
    }
    for name, options in runs.items():
        train(small(objective=options, loop={"epochs": 2}), tmp_path / name)
    assert same(weights(tmp_path / "late"), weights(tmp_path / "never"))
    assert not same(weights(tmp_path / "now"), weights(tmp_path / "never"))
    first = [lines(tmp_path / name, "train")[:2] for name in ("now", "never")]
    assert first[0] == first[1]  # the first epoch's steps are alike


def test_the_ascent_leaves_a_running_centre_alone() -> None:
    regulariser = {"name": "taser", "center": "running"}
    setup = set_up(small(objective={**AWP, "awp_with_penalty": True}, regulariser=regulariser))
    centre = setup.learner.regulariser.center  # type: ignore[union-attr]
    learner, (x, y, *_), generator = setup.learner, next(iter(setup.batches)), torch.Generator()
    pieces = learner._attack(x, y, None, generator)
    for before in (math.nan, 0.25):
        centre.value = torch.tensor(before)
        with learner._perturbed(pieces, 1.0):
            assert float(centre.value) == pytest.approx(before, nan_ok=True)


class Small(Standard):
    """A loss whose gradient passes through float16, where anything below 6e-8 is zero."""

    def loss(self, *arguments: Any) -> Loss:
        return Loss(super().loss(*arguments).total.half().float() * 1e-9)


def test_gradients_of_the_ascent_do_not_vanish_in_float16() -> None:
    setup = set_up(small(model=MLP, objective=AWP))
    learner, (x, y, *_), generator = setup.learner, next(iter(setup.batches)), torch.Generator()
    learner.objective = Small()
    learner.precision.scaler = torch.amp.GradScaler("cpu")
    weight = learner.module.head.weight
    before = weight.detach().clone()
    with learner._perturbed(learner._attack(x, y, None, generator), 0.0):
        length = float((weight - before).norm().detach())
    assert length == pytest.approx(learner.awp_gamma * float(before.norm()), rel=1e-4)


def test_the_penalty_takes_part_in_the_ascent_on_request(tmp_path: Path) -> None:
    for takes_part in (False, True):
        objective = {**AWP, "awp_with_penalty": takes_part}
        regulariser = {"name": "taser", "weight": 0.1, "form": "paper"}
        train(small(objective=objective, regulariser=regulariser), tmp_path / str(takes_part))
    assert not same(weights(tmp_path / "True"), weights(tmp_path / "False"))
