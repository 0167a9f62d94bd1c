"""λ as a dual variable: its steps, its equilibrium, and a run that resumes with the same λ."""

import math
from pathlib import Path

import pytest
import torch

from taser.regularisers import TargetLoss
from taser.training import read_recipe, train


def test_the_steps_of_the_weight() -> None:
    """log λ moves by rate·(1 − loss/target), clipped, and never below its start."""
    weight = TargetLoss(1.0, start=0.1, rate=0.5)
    assert weight(0.5) == pytest.approx(0.1 * math.exp(0.25))
    assert weight(torch.tensor(0.0)) == pytest.approx(0.1 * math.exp(0.75))
    assert weight(1.0) == pytest.approx(0.1 * math.exp(0.75))
    assert weight(1.5) == pytest.approx(0.1 * math.exp(0.5))
    assert weight(1e9) == pytest.approx(0.1)  # e^(0.5 − 0.5): the bracket is at least −1
    assert weight(1e9) == 0.1
    assert weight(float("nan")) == 0.1


def test_the_loss_settles_at_its_target() -> None:
    """Minimise (θ − 1)² + λ·θ²/2: the loss is 0.25 where θ = ½, which takes λ = 2."""
    theta, weight = torch.zeros((), requires_grad=True), TargetLoss(0.25, rate=0.05)
    optimiser = torch.optim.SGD([theta], 0.1)
    for _ in range(2000):
        loss = (theta - 1).square()
        optimiser.zero_grad()
        (loss + weight(loss) * theta.square() / 2).backward()
        optimiser.step()
    assert float(loss.detach()) == pytest.approx(0.25, rel=1e-3)
    assert weight.weight == pytest.approx(2.0, rel=1e-2)


@pytest.mark.parametrize("name", ["target", "start", "rate"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_settings(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} should be a positive number"):
        TargetLoss(**{"target": 1.0, name: value})


SETTINGS = [
    "data.examples=300", "loop.epochs=4", "loop.batch=50", "validation.examples=50",
    "regulariser.name=gradient-norm", "regulariser.norm=l1", "regulariser.of=loss",
    "regulariser.target_loss=1.5", "regulariser.weight=0.001",
]  # fmt: skip


def test_a_run_resumes_with_the_same_weight(tmp_path: Path) -> None:
    whole = train(read_recipe("digits/standard", SETTINGS), tmp_path / "whole")
    config, killed = read_recipe("digits/standard", SETTINGS), tmp_path / "killed"

    def stop(done: int, _total: int, _label: str) -> None:
        if done == 14:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, killed, report=stop)
    train(config, killed)
    assert whole.folder is not None
    for name in ("last.safetensors", "best.safetensors"):
        assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    logged = [
        line for line in (killed / "log.jsonl").read_text().splitlines() if '"weight"' in line
    ]
    assert len({line.split('"weight": ')[1].split(",")[0] for line in logged}) > 3  # λ moved
