"""Perturbed weights inside whole runs: when, how far, and what they leave alone."""

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
    with learner._perturbed(learner._attack(x, y, generator)):
        length = float((weight - before).norm().detach())
    assert length == pytest.approx(learner.awp_gamma * float(before.norm()), rel=1e-4)
