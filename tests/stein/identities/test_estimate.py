import math

import pytest
import torch

from identity_cases import normal
from taser.stein.identities import Estimate


def test_mean_and_standard_error():
    estimate = Estimate.of(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert estimate.value == 2.5
    assert estimate.stderr == pytest.approx(math.sqrt(5 / 3 / 4))
    assert estimate.n == 4
    assert estimate.z == pytest.approx(2.5 / math.sqrt(5 / 12))


def test_float32_samples_are_added_up_in_double_precision():
    samples = 1e6 + normal(10_000).float()
    assert Estimate.of(samples).value == pytest.approx(float(samples.double().mean()), abs=1e-9)


def test_z_of_samples_that_are_all_alike():
    assert Estimate(0.0, 0.0, 5).z == 0.0
    assert Estimate(-1.0, 0.0, 5).z == -math.inf


def test_consistent_with():
    estimate = Estimate(1.0, 0.1, 100)
    assert estimate.consistent_with(1.3)
    assert not estimate.consistent_with(1.5)
    assert estimate.consistent_with(1.5, z=6)
    assert not estimate.consistent_with()
    assert not Estimate(math.nan, 0.1, 100).consistent_with(0)


def test_standard_errors_have_the_coverage_that_they_claim():
    z = torch.tensor([Estimate.of(row).z for row in normal(2000, 50)])
    # The variance of a t with 49 degrees of freedom is 49/47; its estimate has sd ≈ √(2/2000).
    assert float(z.square().mean()) == pytest.approx(49 / 47, abs=4.5 * math.sqrt(2.2 / 2000))


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.0123, 0.0101, 5000), "0.012 ± 0.010 (n = 5000)"),
        (Estimate(-12.3456, 2.34, 10), "-12.3 ± 2.3 (n = 10)"),
        (Estimate(1234.5, 321.0, 10), "1234 ± 321 (n = 10)"),
        (Estimate(1.5, 0.0, 10), "1.5 ± 0 (n = 10)"),
        (Estimate(1.23e-9, 4.56e-10, 10), "1.23e-09 ± 4.6e-10 (n = 10)"),
    ],
)
def test_text_shows_the_digits_that_count(estimate, text):
    assert str(estimate) == text


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 2)])
def test_too_few_samples_or_the_wrong_shape(shape):
    with pytest.raises(ValueError, match="at least two samples in one dimension"):
        Estimate.of(torch.zeros(shape))


def test_samples_that_are_not_finite():
    with pytest.raises(ValueError, match="1 of 3 are not"):
        Estimate.of(torch.tensor([1.0, math.nan, 2.0]))
