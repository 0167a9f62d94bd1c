import math
from functools import partial

import pytest
import torch

from identity_cases import (
    DETECTED,
    Z,
    covariance,
    densities,
    draws,
    gaussian,
    generator,
    network,
    normal,
    quadratic,
)
from taser.scores import Gaussian
from taser.stein import stein_residual
from taser.stein.identities import Estimate
from theorems import exponential_tilt, gaussian_shift, shift_bound

shift_bound_exact = partial(shift_bound, backend="exact", batch=20_000)


def residual(f, density):
    """h(x) = L_p f(x), the direction of tilt that f responds to most."""
    return lambda x: stein_residual(f, x, density(x), backend="exact")


@pytest.mark.parametrize("density", densities())
def test_nearly_an_equality_for_a_tilt_along_the_residual(density):
    f, (x, s) = network(density.dim), draws(density)
    r = residual(f, density)(x).detach()

    def tilted(epsilon):
        return shift_bound_exact(f, x, s, exponential_tilt(lambda _: r / r.std(), epsilon))

    for epsilon in (0.05, -0.05):
        found = tilted(epsilon)
        assert found.rho == pytest.approx(0.05, rel=0.2)
        assert found.slack.consistent_with(0, z=Z)
    found = tilted(0.5)
    assert found.slack.value < 0.1 * found.bound.value + Z * found.slack.stderr
    assert found.response.z > DETECTED
    assert found.holds(z=Z)


def test_tightness_without_noise():
    """On the normal's quantiles the mean residual is zero, and only Cauchy–Schwarz is left."""
    n = 20_000
    levels = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    x = torch.special.ndtri(levels)[:, None]
    density, f = Gaussian(torch.zeros(1, dtype=torch.float64)), lambda x: x.sin().sum(1)
    h = residual(f, density)
    small, middle, large = (
        shift_bound_exact(f, x, -x, exponential_tilt(h, epsilon)).tightness
        for epsilon in (0.01, 0.1, 1.0)
    )
    assert 1 - 1e-4 < small <= 1
    assert 0.5 < large < middle < small
    across = shift_bound_exact(f, x, -x, exponential_tilt(lambda x: x.cos().sum(1), 0.01))
    assert across.tightness < 1e-6  # r is odd and h even


@pytest.mark.parametrize("density", densities())
def test_loose_for_a_tilt_that_hardly_changes_the_residual(density):
    f, (x, s) = network(density.dim), draws(density)
    found = shift_bound_exact(f, x, s, exponential_tilt(lambda x: (4 * x[:, 0]).sin(), 0.7))
    assert found.rho > 0.4
    assert found.tightness < 0.5
    assert found.slack.z > DETECTED
    assert found.holds(z=Z)


@pytest.mark.parametrize("d", [1, 2, 50])
def test_response_to_a_small_tilt_is_a_covariance(d):
    f, (x, s) = network(d), draws(gaussian(d))
    h, epsilon = (lambda x: x.sum(1).sin()), 1e-4
    found = shift_bound_exact(f, x, s, exponential_tilt(h, epsilon))
    r = residual(f, gaussian(d))(x).detach()
    slope = (found.response.value - float(r.mean())) / epsilon
    covariance = float(torch.cov(torch.stack([r, h(x)]), correction=0)[0, 1])
    assert slope == pytest.approx(covariance, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("d", [1, 2, 50])
def test_closed_form_of_a_quadratic_under_a_moved_normal(d):
    (f, a, b), delta = quadratic(d), 0.5 * normal(d, seed=3) / d**0.5
    density = Gaussian(torch.zeros_like(delta), covariance(d))
    shift = gaussian_shift(density, delta)
    x, s = draws(density)
    response = -float(shift.pull @ (a @ delta + b))
    inverse = torch.linalg.inv(covariance(d))
    square = a.square().sum() + (inverse @ a @ covariance(d) @ a).trace() + b @ inverse @ b
    bound = shift.rho * math.sqrt(float(square))
    for rho in (None, shift.rho):
        found = shift_bound_exact(f, x, s, shift.log_ratio, rho=rho)
        assert found.response.consistent_with(response, z=Z)
        assert found.bound.consistent_with(bound, z=Z)
        assert found.slack.consistent_with(bound - abs(response), z=Z)
        assert found.rho == pytest.approx(shift.rho, rel=0.1)
        assert found.effective_n == pytest.approx(len(x) / (1 + shift.chi2), rel=0.1)
        assert found.holds(z=Z)


def test_a_linear_function_under_a_short_move_is_tight():
    """r = −bᵀΣ⁻¹x for f = bᵀx, and q/p − 1 ≈ δᵀΣ⁻¹x: parallel if δ ∝ b."""
    b = normal(3)
    density = Gaussian(torch.zeros_like(b), covariance(3))
    x, s = draws(density)
    shift = gaussian_shift(density, 0.05 * b)
    found = shift_bound_exact(lambda x: x @ b, x, s, shift.log_ratio, rho=shift.rho)
    assert found.tightness == pytest.approx(1, abs=Z * found.slack.stderr / found.bound.value)
    assert found.response.z < -DETECTED


def test_a_wrong_score_breaks_the_bound():
    density = gaussian(2)
    f, (x, s) = network(2), draws(density)
    tilt = exponential_tilt(lambda x: x.sum(1).sin(), 1e-3)
    assert shift_bound_exact(f, x, s, tilt).holds(z=Z)
    wrong = shift_bound_exact(f, x, 1.3 * s, tilt)
    assert wrong.slack.z < -DETECTED
    assert not wrong.holds(z=Z)


def test_no_shift_at_all():
    f, (x, s) = network(2), draws(gaussian(2), 1000)
    found = shift_bound_exact(f, x, s, lambda x: torch.zeros(len(x)))
    assert found.rho == 0
    assert found.bound == Estimate(0.0, 0.0, 1000)
    assert math.isnan(found.tightness)
    assert found.effective_n == 1000
    assert found.holds(z=Z)  # the mean residual is zero, within its standard error


def test_probes_leave_the_bound_unbiased():
    density = Gaussian(torch.zeros(50, dtype=torch.float64))
    (f, _, _), (x, s) = quadratic(50), draws(density)
    tilt = exponential_tilt(lambda x: x[:, 0].sin(), 0.3)
    exact = shift_bound_exact(f, x, s, tilt)
    found = shift_bound(f, x, s, tilt, generator=generator(), batch=20_000)
    assert found.bound.consistent_with(exact.bound.value, z=Z)
    assert found.response.consistent_with(exact.response.value, z=Z)
    r = stein_residual(f, x, s, generator=generator()).detach()
    naive = exact.rho * float(r.square().mean().sqrt())
    assert not found.bound.consistent_with(naive, z=Z)


@pytest.mark.parametrize("rho", [None, 0.7])
def test_standard_errors_against_the_jackknife(rho):
    density, f, n = gaussian(2), network(2), 200
    x, s = draws(density, n)
    r = residual(f, density)  # squashed, so that f responds but no weight dominates
    bound = partial(shift_bound_exact, f, log_ratio=lambda x: r(x).detach().tanh(), rho=rho)
    found = bound(x, s)
    without = [bound(x[keep], s[keep]) for keep in ~torch.eye(n, dtype=torch.bool)]
    for name in ("response", "bound", "slack"):
        values = torch.tensor([getattr(one, name).value for one in without], dtype=torch.float64)
        jackknife = float(values.std()) * (n - 1) / math.sqrt(n)
        assert getattr(found, name).stderr == pytest.approx(jackknife, rel=0.03)


def test_standard_errors_are_those_of_repetitions():
    density, f = gaussian(2), network(2)
    shift = gaussian_shift(density, torch.tensor([0.4, -0.2], dtype=torch.float64))
    repeats = [
        shift_bound_exact(f, *draws(density, 1000, seed=seed), shift.log_ratio)
        for seed in range(200)
    ]
    for name in ("response", "bound", "slack"):
        estimates = [getattr(found, name) for found in repeats]
        spread = float(torch.tensor([e.value for e in estimates]).std())
        claimed = float(torch.tensor([e.stderr for e in estimates]).mean())
        # A standard deviation from 200 draws is accurate to 5 %, less with a heavy tail.
        assert claimed == pytest.approx(spread, rel=0.2)


def test_the_constant_of_the_log_ratio_does_not_matter():
    f, (x, s) = network(2), draws(gaussian(2), 500)
    h = exponential_tilt(lambda x: x.sum(1).sin(), 0.5)
    found = shift_bound_exact(f, x, s, h)
    moved = shift_bound_exact(f, x, s, lambda x: h(x) + 1e4)
    assert moved.response.value == pytest.approx(found.response.value)
    assert moved.rho == pytest.approx(found.rho)


def test_batches_change_nothing():
    f, (x, s) = network(2), draws(gaussian(2), 101)
    h = exponential_tilt(lambda x: x.sum(1).sin(), 0.5)
    found = shift_bound(f, x, s, h, backend="exact", batch=7)
    assert found.slack.value == pytest.approx(shift_bound_exact(f, x, s, h).slack.value)


def test_collapsed_weights_are_reported():
    f, (x, s) = network(2), draws(gaussian(2), 1000)
    shift = gaussian_shift(gaussian(2), torch.full((2,), 3.0, dtype=torch.float64))
    with pytest.warns(UserWarning, match="weights have collapsed: 1000 draws") as caught:
        found = shift_bound_exact(f, x, s, shift.log_ratio)
    assert caught[0].filename == __file__
    assert found.effective_n < 50
    assert found.rho < 0.1 * shift.rho  # which is why it is worth a warning


def test_bad_inputs():
    f, (x, s) = network(2), draws(gaussian(2), 500)
    zero = exponential_tilt(lambda x: x.sum(1), 0.0)
    with pytest.raises(ValueError, match=r"log_ratio should return one number .*\(500, 2\)"):
        shift_bound_exact(f, x, s, lambda x: x)
    with pytest.raises(ValueError, match=r"log_ratio should be finite .* got nan"):
        shift_bound_exact(f, x, s, lambda x: x.sum(1).log())
    with pytest.raises(ValueError, match=r"log_ratio should be finite .* got inf"):
        shift_bound_exact(f, x, s, lambda x: x.sum(1) * math.inf)
    with pytest.raises(ValueError, match=r"rho should be .* got -1"):
        shift_bound_exact(f, x, s, zero, rho=-1.0)
    with pytest.raises(ValueError, match="shape and device of x"):
        shift_bound_exact(f, x, s[:, :1], zero)
    with pytest.raises(ValueError, match="at least two samples"):
        shift_bound_exact(f, x[:1], s[:1], zero)


def test_probes_that_drown_the_residual():
    x, s = draws(gaussian(2), 100)

    def f(x):
        return x[:, 0] * x[:, 1] * 1e3  # one Rademacher probe sees ±2000, and the truth is 0

    outcomes = []
    for seed in range(10):
        try:
            shift_bound(f, x, 0 * s, lambda x: 0.1 * x.sum(1), generator=generator(seed))
        except ValueError as error:
            outcomes.append(str(error))
    assert outcomes
    assert all("Use more probes" in text for text in outcomes)
