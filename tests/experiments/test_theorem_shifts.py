import math

import pytest
import torch

from identity_cases import Z, gaussian, generator, normal
from taser.scores import Gaussian
from taser.stein.identities import Estimate
from theorems import exponential_tilt, gaussian_shift


@pytest.mark.parametrize("d", [1, 2, 50])
def test_moved_normal(d):
    p, delta = gaussian(d), normal(d, seed=3) / d**0.5
    shift = gaussian_shift(p, delta)
    x = normal(20, d).requires_grad_()
    log_ratio = shift.q.log_prob(x) - p.log_prob(x)
    assert shift.log_ratio(x).detach() == pytest.approx(log_ratio.detach(), abs=1e-10)
    (gradient,) = torch.autograd.grad(log_ratio.sum(), x)
    assert shift.grad_log_ratio(x.detach()) == pytest.approx(gradient, abs=1e-10)
    assert shift.q.mean == pytest.approx(p.mean + delta)


def test_chi2_is_the_mean_square_of_the_ratio_less_one():
    p = gaussian(2)
    shift = gaussian_shift(p, torch.tensor([0.3, -0.2], dtype=torch.float64))
    ratio = shift.log_ratio(p.sample(100_000, generator())).exp()
    assert Estimate.of(ratio).consistent_with(1, z=Z)
    assert Estimate.of((ratio - 1).square()).consistent_with(shift.chi2, z=Z)
    assert shift.rho == math.sqrt(shift.chi2)


def test_moved_images():
    p = Gaussian(normal(1, 3, 3), 2.0)
    shift = gaussian_shift(p, torch.ones(1, 3, 3, dtype=torch.float64))
    x = shift.q.sample(5, generator())
    assert x.shape == (5, 1, 3, 3)
    assert shift.log_ratio(x) == pytest.approx(shift.q.log_prob(x) - p.log_prob(x))
    assert shift.grad_log_ratio(x) == pytest.approx(torch.full_like(x, 0.5))
    assert shift.chi2 == pytest.approx(math.exp(4.5) - 1)


def test_tilt():
    x = normal(5, 2)
    assert exponential_tilt(lambda x: x.sum(1), 0.1)(x) == pytest.approx(0.1 * x.sum(1))


def test_delta_of_the_wrong_shape():
    with pytest.raises(ValueError, match=r"delta should have the shape of one input, \(2,\)"):
        gaussian_shift(gaussian(2), torch.zeros(3))
