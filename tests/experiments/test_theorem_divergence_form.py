import pytest
import torch
from torch import nn

from identity_cases import (
    DIMENSIONS,
    densities,
    draws,
    gaussian,
    mixture,
    network,
    normal,
    silu_network,
)
from taser.scores import Gaussian
from taser.stein import UnsupportedLayer, stein_residual
from theorems import divergence_form


@pytest.mark.parametrize("make", [network, silu_network])
@pytest.mark.parametrize("density", densities())
def test_it_is_the_residual_at_every_point(density, make):
    f, (x, s) = make(density.dim), draws(density, 200)
    r = stein_residual(f, x, s, backend="exact").detach()
    assert divergence_form(f, x, density.log_prob) == pytest.approx(r, abs=1e-8)
    other = stein_residual(f, x, 1.01 * s, backend="exact").detach()
    assert divergence_form(f, x, density.log_prob) != pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_far_out_where_the_density_underflows(d):
    density = mixture(d)
    x = 200 * nn.functional.normalize(normal(50, d), dim=1)
    assert float(density.log_prob(x).exp().max()) == 0.0
    r = stein_residual(network(d), x, density(x), backend="exact").detach()
    assert divergence_form(network(d), x, density.log_prob) == pytest.approx(r, rel=1e-8)


def test_a_density_that_is_not_normalised():
    density, x = gaussian(2), normal(20, 2)
    scaled = divergence_form(network(2), x, lambda x: density.log_prob(x) + 1e3)
    assert scaled == pytest.approx(divergence_form(network(2), x, density.log_prob), abs=1e-8)


def test_images_and_linear_functions():
    density = Gaussian(torch.zeros(2, 3, 3, dtype=torch.float64), 2.0)
    x, b = normal(5, 2, 3, 3), normal(18)
    found = divergence_form(lambda x: x.flatten(1) @ b, x, density.log_prob)
    assert found == pytest.approx(-x.flatten(1) @ b / 2)  # Δf = 0
    assert not found.requires_grad


def test_bad_inputs():
    density, x = gaussian(2), normal(20, 2)
    with pytest.raises(ValueError, match=r"log_prob should return one number .*\(20, 2\)"):
        divergence_form(network(2), x, density)
    with pytest.raises(ValueError, match="should depend on x through autograd"):
        divergence_form(network(2), x, lambda x: density.log_prob(x).detach())
    with pytest.raises(ValueError, match="f should return one number"):
        divergence_form(lambda x: x, x, density.log_prob)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1), nn.Flatten(0)).double()
    with pytest.raises(UnsupportedLayer, match="couples the examples"):
        divergence_form(model, x, density.log_prob)
