"""Densities and smooth functions that the tests of the identities share."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from taser.scores import Density, Gaussian, GaussianMixture

Z = 4.5  # a right identity strays further once in 150,000 estimates
DETECTED = 8.0  # smallest z of a wrong score
DIMENSIONS = (1, 2, 50)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def covariance(d: int, seed: int = 1) -> Tensor:
    """A random covariance with eigenvalues between 0.5 and about 1.5."""
    factor = normal(d, d, seed=seed)
    return 0.5 * torch.eye(d, dtype=torch.float64) + 0.25 * factor @ factor.T / d


def gaussian(d: int) -> Gaussian:
    return Gaussian(0.5 * normal(d, seed=2), covariance(d))


def mixture(d: int) -> GaussianMixture:
    """Three normals about two standard deviations apart, of different shapes and weights."""
    covariances = torch.stack([covariance(d, seed=seed) for seed in (3, 4, 5)])
    means = 1.5 * normal(3, d, seed=6) / d**0.5
    return GaussianMixture(means, covariances, torch.tensor([0.5, 0.3, 0.2]))


def network(d: int, activation: Callable[[Tensor], Tensor] = torch.tanh) -> Callable:
    """A random smooth function of two layers, bent upwards so that E[Δf] is not zero."""
    first, second = normal(d, 16, seed=7) / d**0.5, normal(16, seed=8) / 4
    bias = normal(16, seed=9)

    def f(x: Tensor) -> Tensor:
        x = x.flatten(1)
        hidden = activation(x @ first.to(x) + bias.to(x))
        return hidden @ second.to(x) + 0.3 * x.square().sum(1) / d**0.5

    return f


def silu_network(d: int) -> Callable:
    return network(d, nn.functional.silu)


def quadratic(d: int) -> tuple[Callable, Tensor, Tensor]:
    """f(x) = ½ xᵀA x + bᵀx with its A and b."""
    a = normal(d, d, seed=10) / d**0.5
    a, b = (a + a.T) / 2, normal(d, seed=11)

    def f(x: Tensor) -> Tensor:
        return 0.5 * ((x @ a.to(x)) * x).sum(1) + x @ b.to(x)

    return f, a, b


def densities() -> list:
    return [
        pytest.param(kind(d), id=f"{kind.__name__}-{d}")
        for kind in (gaussian, mixture)
        for d in DIMENSIONS
    ]


def draws(density: Density, n: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    """n draws x and the score there; by default enough to find a score that is 30 % too large."""
    n = n or (20_000 if density.dim < 10 else 2000)
    x = density.sample(n, generator(seed))
    return x, density(x)
