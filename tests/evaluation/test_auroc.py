"""The area against its definition, and its interval against repeated sampling."""

import pytest
import torch

import intervals
from taser.evaluation._statistics import auroc


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("ties", [False, True])
def test_it_is_the_share_of_pairs_in_order(ties: bool) -> None:
    inside = torch.randn(60, generator=generator())
    outside = 0.5 + torch.randn(45, generator=generator(1))
    if ties:
        inside, outside = inside.round(), outside.round()
    pairs = outside[:, None] - inside
    expected = float((pairs > 0).double().mean() + 0.5 * (pairs == 0).double().mean())
    assert auroc(inside, outside).value == pytest.approx(expected, abs=1e-12)
    assert auroc(-inside, -outside).value == pytest.approx(1 - expected, abs=1e-12)


def test_extremes() -> None:
    low, high = torch.zeros(5), torch.ones(7)
    assert auroc(low, high).value == 1.0
    assert auroc(high, low).value == 0.0
    assert auroc(low, low).value == 0.5


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.8, 1.0), (3.0, 1.0), (0.0, 3.0)])
def test_the_interval_holds_the_truth_as_often_as_it_says(
    shift: float, scale: float, ties: bool
) -> None:
    """400 pairs of samples, of 100 and 80; experiments/intervals.py has more."""
    studies = 400
    covered = intervals.of_auroc(100, 80, shift, scale, studies, ties=ties)
    assert covered > 0.95 - 3 * (0.05 * 0.95 / studies) ** 0.5


def test_a_perfect_area_has_an_interval_too() -> None:
    found = auroc(torch.zeros(20), torch.ones(30))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025 ** (1 / 20))  # as 20 of 20


def test_numbers_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="1 of them not finite"):
        auroc(torch.tensor([0.0, float("nan")]), torch.ones(2))
    with pytest.raises(ValueError, match="outside"):
        auroc(torch.ones(2), torch.ones(2, 2))
