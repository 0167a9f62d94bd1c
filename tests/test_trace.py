"""How many files a reader has to open to follow a training step, and the penalty alone."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import taser
from taser.training import read_recipe, set_up

SOURCE = Path(taser.__file__).parent


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


OWN = """
import torch
import taser

def network():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

def score():
    return taser.scores.DenoisingScore(lambda x, sigma: x.clamp(0, 1), 0.1)
"""


def test_a_training_step_with_taser_on_pgd_runs_in_few_files(tmp_path: Path) -> None:
    """With a user's own network and score, so that only the package's own files count."""
    (tmp_path / "own.py").write_text(OWN)
    own = [f"model.name={tmp_path}/own.py:network", f"regulariser.score={tmp_path}/own.py:score"]
    always = ["regulariser.name=taser", "loop.batch=16", "loop.device=cpu"]
    always += ["model.width=null", "model.activation=null"]
    setup = set_up(read_recipe("digits/pgd", [*own, *always]))
    batch = next(iter(setup.batches))
    generator = torch.Generator().manual_seed(0)
    found = files_called(
        lambda: setup.learner.step(batch.x, batch.y, generator, weight=0.1, perturb=False)
    )
    assert len(found) <= 14, sorted(found)


def test_the_penalty_runs_in_few_files() -> None:
    model, x, y = torch.nn.Linear(4, 3), torch.rand(8, 4), torch.arange(8) % 3
    penalty, s = taser.SteinPenalty(), -x
    found = files_called(lambda: penalty(model, x, y, s))
    assert len(found) <= 8, sorted(found)
