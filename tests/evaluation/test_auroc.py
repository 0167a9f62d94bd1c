"""The area against its definition, and its interval against repeated sampling."""

import pytest
import torch

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


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    truth = float(torch.distributions.Normal(0, 1).cdf(torch.tensor(0.8 / 2**0.5)))
    trials, held = 200, 0
    for trial in range(trials):
        draws = generator(trial)
        area = auroc(
            torch.randn(100, generator=draws), 0.8 + torch.randn(80, generator=draws), resamples=400
        )
        held += area.low <= truth <= area.high
    # 95 % of 200, less four standard errors and the few points that a bootstrap falls short by.
    assert held / trials > 0.95 - 4 * (0.05 * 0.95 / trials) ** 0.5 - 0.02
    assert held < trials


def test_numbers_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="1 of them not finite"):
        auroc(torch.tensor([0.0, float("nan")]), torch.ones(2))
    with pytest.raises(ValueError, match="outside"):
        auroc(torch.ones(2), torch.ones(2, 2))
