"""The paper's recipes, for one GPU and for eight, come as far as a dry run."""

import pytest

from cases import images
from taser.compare._comparison_config import METHODS
from taser.training import _estimate_cost as estimation
from taser.training import read_recipe
from taser.training._build import set_up


@pytest.mark.parametrize("taser", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("family", "batch"), [("paper", 256), ("paper/eight", 1024)])
def test_dry_run(
    family: str, batch: int, method: str, taser: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a width that a test can bear; random pixels instead of CIFAR-10."""
    monkeypatch.setattr(estimation, "ENOUGH", 0.0)
    monkeypatch.setattr(estimation, "SMALLEST", 2)
    overrides = ["model.width=8", "objective.steps=1", *["regulariser.name=taser"] * taser]
    config = read_recipe(f"{family}/{method}", overrides)
    assert (config.loop.batch, config.loop.epochs) == (batch, 200)
    assert config.loop.batch % 8 == 0
    found = estimation.estimate(set_up(config, images(2 * batch)))
    assert found.steps == 200 * 2
    assert found.seconds > 0
    assert found.memory > 0


def test_the_papers_numbers() -> None:
    config = read_recipe("paper/trades-awp", ["regulariser.name=taser"])
    penalty, method = config.regulariser, config.objective
    assert (penalty.weight, penalty.form) == (1.0, "paper")
    assert (penalty.operator, penalty.timestep, penalty.ramp) == (None, 50, 0.1)
    assert (penalty.every, penalty.fraction) == (1, None)
    assert (method.epsilon, method.steps, method.step_size) == (8 / 255, 10, 2 / 255)
    assert (method.beta, method.awp_gamma, method.awp_start) == (6.0, 0.005, 10)
    assert read_recipe("paper/mart").objective.mart_weight == 5.0
    tuned = read_recipe("finetune/taser")
    assert (tuned.loop.epochs, tuned.optimiser.rate, tuned.regulariser.ramp) == (50, 1e-3, 0.1)
    assert (tuned.schedule.warmup, tuned.schedule.final) == (0.1, 0.1)
