from functools import partial

import pytest
import torch

from identity_cases import DETECTED, DIMENSIONS, Z, draws, generator, mixture, normal
from taser.stein.identities import Estimate, inverse_multiquadric, radial_basis, stein_kernel

KERNELS = [partial(inverse_multiquadric, c=0.8), partial(radial_basis, c=1.3)]


def value(kernel, x, y):
    """k(x, y) of two points, as its docstring says."""
    square = (x - y).square().sum()
    c = kernel.keywords["c"]
    if kernel.func is inverse_multiquadric:
        return (c**2 + square) ** -0.5
    return (-square / (2 * c**2)).exp()


def by_autograd(kernel, x, s, y, t):
    """k_p(x, y) of two points, every derivative of k by autograd (app-stein-kernel)."""
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    k = value(kernel, x, y)
    grad_x, grad_y = torch.autograd.grad(k, (x, y), create_graph=True)
    trace = sum(torch.autograd.grad(grad_x[i], y, retain_graph=True)[0][i] for i in range(len(x)))
    return (s @ t * k + s @ grad_y + t @ grad_x + trace).detach()


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_closed_form_against_autograd(kernel, d):
    x, s, y, t = (normal(4, d, seed=seed) for seed in range(4))
    y[0] = x[0]  # a pair at no distance
    slow = torch.stack(
        [
            torch.stack([by_autograd(kernel, x[i], s[i], y[j], t[j]) for j in range(4)])
            for i in range(4)
        ]
    )
    assert stein_kernel(kernel, x, s, y, t) == pytest.approx(slow, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_stein_kernel_is_symmetric_and_positive(kernel):
    x, s = draws(mixture(2), 40)
    matrix = stein_kernel(kernel, x, s, x, s)
    assert matrix == pytest.approx(matrix.T)
    assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-10


@pytest.mark.parametrize("kernel", KERNELS)
def test_its_mean_is_zero_under_p_from_any_point(kernel):
    """E_{x~p}[k_p(x, y)] = 0 for each y, since k_p(·, y) is a Stein operator's image."""
    density = mixture(2)
    x, s = draws(density, 50_000)
    y = density.sample(5, generator(1))
    for column in stein_kernel(kernel, x, s, y, density(y)).T:
        assert Estimate.of(column).consistent_with(0, z=Z)
    wrong = stein_kernel(kernel, x, 1.5 * s, y, 1.5 * density(y)).T
    assert max(abs(Estimate.of(column).z) for column in wrong) > DETECTED
