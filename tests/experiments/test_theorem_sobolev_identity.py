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
    mixture,
    network,
    normal,
    quadratic,
    silu_network,
)
from taser.probes import Output, Probed
from taser.scores import Gaussian, GaussianMixture
from taser.stein import stein_residual
from taser.stein.identities import Estimate
from theorems import sobolev_identity


@pytest.mark.parametrize("make", [network, silu_network])
@pytest.mark.parametrize("density", densities())
def test_sides_agree_for_the_right_score_and_not_for_another(density, make):
    f, (x, _) = make(density.dim), draws(density)
    assert sobolev_identity(f, x, density, batch=len(x)).holds(z=Z)
    wrong = sobolev_identity(f, x, lambda x: 1.3 * density(x), batch=len(x))
    assert abs(wrong.difference.z) > DETECTED


@pytest.mark.parametrize("probes", [None, 2])
@pytest.mark.parametrize("d", [1, 2, 50])
def test_closed_form_of_a_quadratic_under_a_normal(d, probes):
    """E[r²] = tr A² + tr(Σ⁻¹AΣA) + bᵀΣ⁻¹b for f = ½xᵀAx + bᵀx and N(0, Σ)."""
    (f, a, b), cov = quadratic(d), covariance(d)
    density = Gaussian(torch.zeros_like(b), cov)
    x, _ = draws(density)
    found = sobolev_identity(f, x, density, probes=probes, generator=generator(), batch=len(x))
    curvature = float(a.square().sum())
    inverse = torch.linalg.inv(cov)
    metric = float((inverse @ a @ cov @ a).trace() + b @ inverse @ b)
    assert found.left.consistent_with(curvature + metric, z=Z)
    assert found.right.consistent_with(curvature + metric, z=Z)
    assert found.metric.consistent_with(metric, z=Z)
    # The Hessian is the same everywhere: without probes nothing is left to chance.
    chance = 0.0 if probes is None else Z * found.curvature.stderr
    assert found.curvature.value == pytest.approx(curvature, rel=1e-12, abs=chance)


@pytest.mark.parametrize("d", [1, 2, 50])
def test_standard_normal_gives_the_classical_sobolev_norm(d):
    """E[(L_p f)²] = E‖∇²f‖² + E‖∇f‖² (gaussian-sobolev)."""
    f, density = network(d), Gaussian(torch.zeros(d, dtype=torch.float64))
    x, _ = draws(density)
    found = sobolev_identity(f, x, density, batch=len(x))
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(f(x).sum(), x)
    assert found.metric.value == pytest.approx(float(gradient.square().sum(1).mean()), rel=1e-8)
    assert found.holds(z=Z)


@pytest.mark.parametrize("density", densities()[2::3])
def test_probes_estimate_both_sides_without_bias(density):
    f, (x, _) = network(density.dim), draws(density)
    every = sobolev_identity(f, x, density, batch=len(x))
    for probes in (1, 8):
        found = sobolev_identity(f, x, density, probes=probes, generator=generator(), batch=len(x))
        assert found.holds(z=Z)
        assert found.left.consistent_with(every.left.value, z=Z)
        assert found.curvature.consistent_with(every.curvature.value, z=Z)
        assert found.metric.value == pytest.approx(every.metric.value)


def test_the_square_of_one_estimate_would_be_biased():
    density = Gaussian(torch.zeros(50, dtype=torch.float64))
    x, s = draws(density)
    f, _, _ = quadratic(50)
    every = sobolev_identity(f, x, density, batch=len(x))
    r = stein_residual(f, x, s, generator=generator()).detach()
    assert not Estimate.of(r.square()).consistent_with(every.left.value, z=Z)
    found = sobolev_identity(f, x, density, probes=1, generator=generator(), batch=len(x))
    assert found.left.consistent_with(every.left.value, z=Z)


def test_metric_is_negative_between_two_modes():
    density = GaussianMixture(torch.tensor([[-1.0], [1.0]], dtype=torch.float64), 0.3)
    x, _ = draws(density)
    found = sobolev_identity(lambda x: (3 * x).tanh().sum(1), x, density, batch=len(x))
    assert found.metric.z < -DETECTED
    assert found.holds(z=Z)


@pytest.mark.parametrize("d", [2, 50])
def test_float32_is_good_enough(d):
    density = mixture(d)
    x, _ = draws(density, 500)
    double = sobolev_identity(network(d), x, density)
    single = sobolev_identity(network(d), x.float(), density.float())
    for name in ("left", "right", "curvature", "metric"):
        found, right = getattr(single, name).value, getattr(double, name).value
        assert found == pytest.approx(right, rel=1e-4)


def test_images_are_as_good_as_rows():
    rows = gaussian(16)
    images = Gaussian(rows.mean.view(1, 4, 4), rows.cov)
    x, _ = draws(rows, 100)
    flat = sobolev_identity(network(16), x, rows)
    folded = sobolev_identity(network(16), x.view(-1, 1, 4, 4), images, batch=30)
    assert folded.left.value == pytest.approx(flat.left.value)
    assert folded.right.value == pytest.approx(flat.right.value)


def test_a_linear_function_has_no_curvature():
    density, b = gaussian(3), normal(3)
    x, _ = draws(density, 5000)
    found = sobolev_identity(lambda x: x @ b, x, density, batch=5000)
    assert found.curvature == Estimate(0.0, 0.0, 5000)
    inverse = torch.linalg.inv(density.cov)
    assert found.metric.value == pytest.approx(float(b @ inverse @ b), rel=1e-8)
    assert found.holds(z=Z)


def test_bad_inputs():
    density, f = gaussian(2), network(2)
    x, _ = draws(density, 50)
    with pytest.raises(ValueError, match="step should be positive; got 0"):
        sobolev_identity(f, x, density, step=0)
    with pytest.raises(ValueError, match="probes should be a whole number of at least 1; got 0"):
        sobolev_identity(f, x, density, probes=0)
    with pytest.raises(ValueError, match="float32 or float64"):
        sobolev_identity(f, x.half(), density)
    with pytest.raises(ValueError, match="at least two samples; x has 1"):
        sobolev_identity(f, x[:1], density)
    with pytest.raises(ValueError, match="shape and device of x"):
        sobolev_identity(f, x, lambda x: density(x)[:, :1])
    with pytest.raises(ValueError, match="one label for each"):
        sobolev_identity(Probed(f, Output(), torch.zeros(25)), x, density)
