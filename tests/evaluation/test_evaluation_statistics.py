"""Intervals cover, tests are exact."""

from math import comb

import numpy as np
import pytest
import torch

from taser.evaluation import accuracy_interval, difference_interval, mcnemar

SIMULATIONS = 400


def mask(right: int, n: int) -> torch.Tensor:
    return torch.arange(n) < right


@pytest.mark.parametrize("p", [0.1, 0.5, 0.93])
def test_accuracy_intervals_cover_the_truth(p: float) -> None:
    rng = np.random.default_rng(0)
    n = 300
    covered = 0
    for right in rng.binomial(n, p, SIMULATIONS):
        interval = accuracy_interval(mask(int(right), n))
        covered += interval.low <= p <= interval.high
    # 95 %, less up to two points that a percentile interval of a discrete mean loses at n = 300;
    # of 400 simulations, three standard errors are 3.3 points
    assert 0.95 - 0.02 - 0.033 <= covered / SIMULATIONS <= 0.95 + 0.033


def test_the_bootstrap_is_that_of_resampled_examples() -> None:
    right, n = 37, 120
    rng = np.random.default_rng(1)
    answers = mask(right, n).numpy()
    means = answers[rng.integers(n, size=(20_000, n))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    interval = accuracy_interval(mask(right, n))
    assert interval.value == right / n
    # quantiles of a mean on the grid 1/n: both draws may land one step apart
    assert interval.low == pytest.approx(low, abs=1.01 / n)
    assert interval.high == pytest.approx(high, abs=1.01 / n)


def test_an_interval_of_nothing_broken_or_all_broken_is_not_a_point() -> None:
    none, all_ = accuracy_interval(mask(0, 1000)), accuracy_interval(mask(1000, 1000))
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(0.00368, abs=1e-5)  # Clopper and Pearson, 1 − 0.025^(1/1000)
    assert (all_.value, all_.high) == (1.0, 1.0)
    assert all_.low == pytest.approx(1 - none.high)


def paired(n: int, rng: np.random.Generator, lead: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Two models right on mostly the same examples, the first by `lead` more often."""
    u = rng.random(n)
    first, second = u < 0.5 + lead, (u < 0.5) ^ (rng.random(n) < 0.05)
    return torch.from_numpy(first), torch.from_numpy(second)


def test_paired_intervals_cover_the_true_difference() -> None:
    rng = np.random.default_rng(2)
    truth = 0.04  # the flips move the second model's mean by 0.05·(1 − 2·½) = 0
    covered = 0
    for _ in range(SIMULATIONS):
        interval = difference_interval(*paired(400, rng, truth))
        covered += interval.low <= truth <= interval.high
    assert 0.95 - 0.02 - 0.033 <= covered / SIMULATIONS <= 0.95 + 0.033


def test_pairing_makes_intervals_narrower() -> None:
    first, second = paired(1000, np.random.default_rng(3), 0.03)
    interval = difference_interval(first, second)
    alone = [accuracy_interval(verdicts) for verdicts in (first, second)]
    apart = sum((i.high - i.low) ** 2 for i in alone) ** 0.5
    assert interval.high - interval.low < 0.6 * apart
    assert interval.value == pytest.approx(float(first.float().mean() - second.float().mean()))
    assert interval.excludes_zero()
    swapped = difference_interval(second, first)
    assert swapped.value == -interval.value


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (5, 1), (8, 8), (3, 20), (400, 350)])
def test_mcnemar_is_the_binomial_test(gained: int, lost: int) -> None:
    same = 30
    first = torch.tensor([True] * gained + [False] * lost + [True] * same)
    second = torch.tensor([False] * gained + [True] * lost + [True] * same)
    both = gained + lost
    extreme = max(gained, lost)
    upper = sum(comb(both, k) for k in range(extreme, both + 1)) / 2**both  # the other tail
    assert mcnemar(first, second) == pytest.approx(min(1.0, 2 * upper))
    assert mcnemar(first, second) == mcnemar(second, first)


def test_mcnemar_rejects_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    small = sum(mcnemar(*paired(400, rng, 0.0)) < 0.05 for _ in range(SIMULATIONS))
    assert small / SIMULATIONS <= 0.05 + 0.033  # exact: at most 5 %, and three standard errors


def test_unpaired_verdicts_are_refused() -> None:
    with pytest.raises(ValueError, match="same examples"):
        mcnemar(mask(1, 3), mask(1, 4))
    with pytest.raises(ValueError, match="level"):
        accuracy_interval(mask(1, 3), level=95)
