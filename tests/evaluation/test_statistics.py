"""Intervals that hold what they promise, and McNemar's test against the binomial."""

from itertools import product
from math import comb

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from scipy.stats import t as student

import intervals
from taser.evaluation import (
    accuracy_interval,
    difference_interval,
    mcnemar,
    retrained_interval,
    subset,
)


@pytest.mark.parametrize("n", [50, 200, 1000])
@pytest.mark.parametrize("p", [0.3, 0.9, 0.985, 0.998])
def test_the_interval_of_an_accuracy_covers_it_as_often_as_it_says(n: int, p: float) -> None:
    """Exactly: the probability of all counts whose interval holds p."""
    counts = np.arange(max(0, int(n * p) - 120), n + 1)
    found = [accuracy_interval(torch.arange(n) < int(count)) for count in counts]
    covered = np.array([interval.low <= p <= interval.high for interval in found])
    assert float(binom.pmf(counts, n, p) @ covered) >= 0.95 - 1e-6


@pytest.mark.parametrize(("k", "p"), [(2, 0.5), (5, 0.985), (5, 0.9)])
def test_the_interval_of_several_networks_accuracy_holds_its_level(k: int, p: float) -> None:
    """600 samples of 100 examples, which are harder or easier for all k networks alike."""
    rng = np.random.default_rng(0)
    hits, samples = 0, 600
    for _ in range(samples):
        ease = 3 * rng.standard_normal(100) + 10**0.5 * norm.ppf(p)
        correct = torch.from_numpy(rng.standard_normal((k, 100)) < ease)
        found = accuracy_interval(correct)
        hits += found.low <= p <= found.high
    assert hits / samples > 0.95 - 3 * (0.95 * 0.05 / samples) ** 0.5


@pytest.mark.parametrize(("k", "scatter"), [(2, 0.01), (2, 0.08), (3, 0.01), (3, 0.08), (5, 0.04)])
def test_the_interval_with_other_seeds_covers_the_gain_of_another_training(
    k: int, scatter: float
) -> None:
    """400 studies of k trainings whose gains scatter about five points, n = 300.

    Coverage at least 95 %, up to three standard errors. The interval over examples, which takes the
    networks as they are, covers less often where they differ much.
    """
    rng = np.random.default_rng(0)
    hits, hits_over_examples, studies, fewer = 0, 0, 400, 40
    for study in range(studies):
        hard = rng.random(300)  # of an example, alike for all networks
        gains = 0.05 + scatter * rng.standard_normal(k)
        second = [torch.from_numpy(hard < 0.5 + 0.1 * rng.standard_normal(300)) for _ in gains]
        noise = 0.1 * rng.standard_normal((k, 300))
        first = [torch.from_numpy(hard < 0.5 + g + e) for g, e in zip(gains, noise, strict=True)]
        found = retrained_interval(first, second)
        hits += found.low <= 0.05 <= found.high
        if study < fewer:
            fixed = difference_interval(torch.stack(first), torch.stack(second))
            assert fixed.value == pytest.approx(found.value)
            hits_over_examples += fixed.low <= 0.05 <= fixed.high
    assert hits / studies > 0.95 - 3 * (0.95 * 0.05 / studies) ** 0.5
    assert scatter < 0.04 or hits_over_examples / fewer < 0.8


def test_the_interval_with_other_seeds_by_hand() -> None:
    """Gains 0.5 and 0.25 on four examples: var(g)/k = 4/256; d = (1, ½, 0, 0), var(d)/n = 11/256.

    The half-width is the larger of t₁·√(4/256) = 0.125 and t₃·√(15/256) = 0.185 at level ½.
    """
    first = [torch.tensor([1, 1, 0, 0]).bool(), torch.tensor([1, 0, 0, 0]).bool()]
    second = [torch.zeros(4, dtype=torch.bool)] * 2
    found = retrained_interval(first, second, level=0.5)
    assert found.value == pytest.approx(0.375)
    t = student.ppf(0.75, 3)
    assert found.high - found.value == pytest.approx(t * (15 / 256) ** 0.5)
    of_seeds = retrained_interval(first, second, level=0.9)
    assert of_seeds.high - 0.375 == pytest.approx(min(student.ppf(0.95, 1) * 0.125, 0.625))


def test_the_interval_with_other_seeds_where_nothing_differs() -> None:
    right = torch.ones(100, dtype=torch.bool)
    found = retrained_interval([right, right], [right, right])
    assert found.low == pytest.approx(-found.high)
    assert found.high == pytest.approx(1 - 0.025**0.01)  # as for networks that are as they are


def test_the_interval_with_other_seeds_needs_two() -> None:
    right = torch.ones(100, dtype=torch.bool)
    with pytest.raises(ValueError, match="at least two pairs of trainings"):
        retrained_interval([right], [right])
    with pytest.raises(ValueError, match="got 2 and 1"):
        retrained_interval([right, right], [right])
    with pytest.raises(ValueError, match=r"the same examples; got \[50, 100\]"):
        retrained_interval([right, right], [right, right[:50]])


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(("gained", "lost"), [(0.01, 0.0), (0.02, 0.01), (0.1, 0.05), (0.3, 0.25)])
def test_the_paired_interval_holds_its_level(gained: float, lost: float, k: int) -> None:
    """500 samples of 300 examples; experiments/intervals.py has more."""
    studies = 500
    covered = intervals.of_difference(gained, lost, 300, studies, k)
    assert covered > 0.95 - 3 * (0.95 * 0.05 / studies) ** 0.5


def test_the_paired_interval_agrees_with_the_bootstrap() -> None:
    """Against resampling the rows one by one, to the error of 10,000 draws."""
    rng = np.random.default_rng(1)
    first, second = torch.from_numpy(rng.random(300) < 0.6), torch.from_numpy(rng.random(300) < 0.5)
    found = difference_interval(first, second)
    rows = rng.integers(300, size=(10_000, 300))
    change = first.numpy().astype(float) - second.numpy()
    low, high = np.quantile(change[rows].mean(1), [0.025, 0.975])
    assert found.value == pytest.approx(change.mean())
    # the quantile of B draws has standard error √(q(1−q)/B)/density ≈ 0.07 standard deviations
    deviation = change.std() / 300**0.5
    assert abs(found.low - low) < 0.2 * deviation
    assert abs(found.high - high) < 0.2 * deviation


def test_several_answers_to_an_example_are_drawn_together() -> None:
    """Against resampling whole columns one by one: three networks that mostly agree."""
    rng = np.random.default_rng(2)
    easy = rng.random(200)
    correct = torch.from_numpy(np.stack([easy + 0.1 * rng.random(200) < 0.6 for _ in range(3)]))
    found = accuracy_interval(correct)
    rows = rng.integers(200, size=(10_000, 200))
    shares = correct.double().mean(0).numpy()
    low, high = np.quantile(shares[rows].mean(1), [0.025, 0.975])
    deviation = shares.std() / 200**0.5
    assert found.value == pytest.approx(shares.mean())
    assert abs(found.low - low) < 0.2 * deviation
    assert abs(found.high - high) < 0.2 * deviation
    pooled = accuracy_interval(correct.flatten())
    assert pooled.high - pooled.low < 0.7 * (found.high - found.low)  # too sure by nearly √3


def test_pairing_counts() -> None:
    """The same marginal accuracies: agreement narrows the interval of the difference."""
    right = torch.arange(100) < 60
    nested = torch.arange(100) < 50
    crossed = torch.arange(100) >= 50
    tight, wide = difference_interval(right, nested), difference_interval(right, crossed)
    assert tight.value == pytest.approx(wide.value)
    assert tight.excludes_zero()
    assert not wide.excludes_zero()


def test_an_accuracy_of_zero_or_one_has_an_interval() -> None:
    nothing = accuracy_interval(torch.zeros(100, dtype=torch.bool))
    assert nothing.low == nothing.value == 0
    assert nothing.high == pytest.approx(1 - 0.025 ** (1 / 100))
    assert accuracy_interval(torch.ones(100, dtype=torch.bool)).low == pytest.approx(
        1 - nothing.high
    )


def test_models_that_never_differ_still_might() -> None:
    right = torch.arange(100) % 3 == 0
    same = difference_interval(right, right)
    assert same.value == 0
    assert same.high == -same.low == pytest.approx(1 - 0.025 ** (1 / 100))


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (7, 2), (10, 10), (30, 12)])
def test_mcnemar_is_the_exact_sign_test(gained: int, lost: int) -> None:
    first = torch.tensor([True] * gained + [False] * lost + [True] * 5)
    second = torch.tensor([False] * gained + [True] * lost + [True] * 5)
    n, k = gained + lost, min(gained, lost)
    expected = min(1.0, 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n)
    assert mcnemar(first, second) == pytest.approx(expected)
    assert mcnemar(second, first) == pytest.approx(expected)


def test_wrong_inputs() -> None:
    with pytest.raises(ValueError, match="same examples"):
        difference_interval(torch.ones(3).bool(), torch.ones(4).bool())
    with pytest.raises(ValueError, match="at least one example"):
        accuracy_interval(torch.ones(0).bool())


def test_the_subset_is_the_same_for_all_and_nested() -> None:
    assert torch.equal(subset(1000, 50), subset(1000, 50))
    assert set(subset(1000, 50).tolist()) < set(subset(1000, 100).tolist())
    assert subset(1000, 50).unique().numel() == 50
    with pytest.raises(ValueError, match="at least 1"):
        subset(10, 0)


@pytest.mark.parametrize(("gained", "lost"), [(4, 0), (5, 0), (9, 2), (13, 5), (6, 0), (15, 3)])
def test_few_differing_answers_decide_only_where_the_exact_test_does(
    gained: int, lost: int
) -> None:
    """Four against none have p = 0.125."""
    first, second = torch.zeros(1000).bool(), torch.zeros(1000).bool()
    first[:gained] = True
    second[gained : gained + lost] = True
    found = difference_interval(first, second)
    assert found.excludes_zero() == (mcnemar(first, second) < 0.05)
    assert found.value == pytest.approx((gained - lost) / 1000)
    assert found.low < found.value < found.high
    other = difference_interval(second, first)
    assert (other.low, other.high) == pytest.approx((-found.high, -found.low))


@pytest.mark.parametrize(
    ("votes", "beyond_doubt", "decided"),
    [
        # all four examples of twelve answers: p = 2/16, whatever the seeds
        ([3, 3, 3, 3], False, False),
        ([3, 3, 3, 3, 3, 3], True, True),
        ([1, 1, 2, 3, 1, 2], True, False),  # p = 2/64; the interval touches zero
        ([1, 1, 2, 3, 1, 2, 1], True, True),
        ([3, 2, 2, 1, 1, -1, -1, 1], False, False),
        ([3, 2, 2, 3, 1, -1, 1, 1, 2, 3], True, True),
    ],
)
def test_few_examples_decide_over_several_seeds_only_where_flipping_signs_does(
    votes: list[int], beyond_doubt: bool, decided: bool
) -> None:
    """Against all 2^m flips of the examples' signs, the exact test of no difference."""
    k, n = 3, 300
    first, second = torch.zeros(k, n).bool(), torch.zeros(k, n).bool()
    for column, vote in enumerate(votes):
        (first if vote > 0 else second)[: abs(vote), column] = True
    found = difference_interval(first, second)
    flips = np.array(list(product((1, -1), repeat=len(votes)))) @ np.abs(votes)
    p = 2 * min((flips >= sum(votes)).mean(), (flips <= sum(votes)).mean())
    assert (p < 0.05) == beyond_doubt
    assert found.excludes_zero() == decided
    assert found.low < found.value == pytest.approx(sum(votes) / (k * n))
    assert found.value < found.high
    other = difference_interval(second, first)
    assert (other.low, other.high) == pytest.approx((-found.high, -found.low))


def test_the_bound_of_an_accuracy_grows_with_it() -> None:
    bounds = [accuracy_interval(torch.arange(1000) < right).high for right in range(6)]
    assert bounds == sorted(bounds)
