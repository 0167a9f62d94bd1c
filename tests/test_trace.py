"""How many files a reader has to open to follow a training step, and the penalty alone."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import taser
from taser.training import read_recipe
from taser.training._build import set_up

SOURCE = Path(taser.__file__).parent
NETWORKS = {"models/_architectures.py", "scores/_denoiser.py"}  # which could be the user's own


def files_called(function: Callable[[], Any]) -> set[str]:
    """The files of the package in which a function runs while `function` does."""
    found: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            found.add(str(path.relative_to(SOURCE)))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def test_a_training_step_with_taser_on_pgd_runs_in_few_files() -> None:
    config = read_recipe(
        "digits/pgd", ["regulariser.name=taser", "loop.batch=16", "loop.device=cpu"]
    )
    setup = set_up(config)
    batch = next(iter(setup.batches))
    generator = torch.Generator().manual_seed(0)
    found = files_called(
        lambda: setup.learner.step(batch.x, batch.y, None, generator, weight=0.1, perturb=False)
    )
    found -= NETWORKS
    assert len(found) <= 14, sorted(found)


def test_the_penalty_runs_in_few_files() -> None:
    model, x, y = torch.nn.Linear(4, 3), torch.rand(8, 4), torch.arange(8) % 3
    penalty, s = taser.SteinPenalty(), -x
    found = files_called(lambda: penalty(model, x, y, s))
    assert len(found) <= 8, sorted(found)
