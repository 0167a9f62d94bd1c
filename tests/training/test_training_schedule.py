"""Learning rates and the ramp of λ, by numbers from the paper's formulas."""

import math

import pytest

from taser.training._config import ScheduleConfig
from taser.training._run import learning_rate, ramp


def rates(config: ScheduleConfig, steps: int, highest: float = 1e-3) -> list[float]:
    return [learning_rate(step, steps, highest, config) for step in range(steps)]


def test_fine_tuning_warms_up_and_then_follows_a_cosine() -> None:
    """1e-3 → 1e-4 over 100 steps, ten of them warm-up."""
    found = rates(ScheduleConfig("cosine", warmup=0.1, final=0.1), 100)
    assert found[:10] == pytest.approx([1e-4 * (t + 1) for t in range(10)])
    for t in range(10, 100):
        cosine = 1e-4 + 0.5 * (1e-3 - 1e-4) * (1 + math.cos(math.pi * (t - 10) / 90))
        assert found[t] == pytest.approx(cosine)
    assert found[10] == pytest.approx(1e-3)
    assert found[55] == pytest.approx(5.5e-4)
    assert found[99] == pytest.approx(1e-4, rel=0.01)


def test_from_scratch_the_cosine_goes_from_the_start_to_zero() -> None:
    found = rates(ScheduleConfig(), 4)
    assert found == pytest.approx([1e-3 * (1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)])


def test_linear() -> None:
    found = rates(ScheduleConfig("linear", warmup=0.2, final=0.5), 10, 1.0)
    assert found == pytest.approx([0.5, 1.0, *(1 - 0.5 * t / 8 for t in range(8))])


def test_steps() -> None:
    found = rates(ScheduleConfig("step", milestones=(0.5, 0.75), factor=0.1), 8, 1.0)
    assert found == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_constant_after_warm_up() -> None:
    assert rates(ScheduleConfig("constant", warmup=0.5), 4, 1.0) == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["cosine", "linear", "step", "constant"])
def test_the_highest_rate_is_the_highest(name: str) -> None:
    """Whatever the number of steps: a tenth of 15 is no whole number of them."""
    for steps in range(1, 40):
        found = rates(ScheduleConfig(name, warmup=0.1), steps, 1.0)  # type: ignore[arg-type]
        assert 0 < min(found) <= max(found) <= 1.0


def test_ramp() -> None:
    assert [ramp(t, 20, 0.2) for t in range(7)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert [ramp(t, 20, 0.0) for t in range(3)] == [1.0, 1.0, 1.0]
    assert [ramp(t, 5, 0.1) for t in range(3)] == [0.0, 1.0, 1.0]  # shorter than a step
