"""Closed-form densities after noise: scores with a noise level, against other closed forms."""

import math

import pytest
import torch
from test_scores import DENSITIES, generator, points, spd, torch_double

import taser
from taser.scores import (
    Density,
    DensityScore,
    Gaussian,
    GaussianMixture,
    KernelDensity,
    NoisedScore,
    Score,
)
from taser.stein.identities import stein_identity

SIGMA = 0.6
VECTORS = ["gaussian 2", "gaussian 50", "mixture shared", "mixture full", "kde"]


@pytest.fixture(params=DENSITIES)
def density(request: pytest.FixtureRequest) -> Density:
    return DENSITIES[request.param]()


def test_noise_adds_its_variance() -> None:
    x = points(6, 2, seed=3)
    noise = SIGMA**2 * torch.eye(2, dtype=torch_double)
    for before, after in (
        (Gaussian(points(2), spd(2)), Gaussian(points(2), spd(2) + noise)),
        (
            GaussianMixture(points(3, 2), spd(2, 3), torch.tensor([1.0, 2.0, 3.0])),
            GaussianMixture(points(3, 2), spd(2, 3) + noise, torch.tensor([1.0, 2.0, 3.0])),
        ),
        (
            KernelDensity(points(9, 2), 0.4),
            KernelDensity(points(9, 2), math.hypot(0.4, SIGMA)),
        ),
    ):
        torch.testing.assert_close(before.at(sigma=SIGMA)(x), after(x))
        torch.testing.assert_close(before.smoothed(SIGMA).log_prob(x), after.log_prob(x))
    many = GaussianMixture(points(9, 2), 0.4**2)  # a kernel density is such a mixture
    expected = KernelDensity(points(9, 2), 0.4).at(sigma=SIGMA)(x)
    torch.testing.assert_close(many.at(sigma=SIGMA)(x), expected)


def test_it_is_the_score_of_the_noised_density(density: Density) -> None:
    """Shape, type and no graph, as for any score."""
    score = density.at(sigma=SIGMA)
    x, s = score.noised(density.sample(20, generator()), generator(1))
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(density.smoothed(SIGMA).log_prob(leaf).sum(), leaf)
    torch.testing.assert_close(s, gradient, rtol=1e-9, atol=1e-9)
    assert isinstance(score, Score)
    assert score.sigma == SIGMA
    assert score(leaf.float()).dtype == torch.float32
    assert not score(leaf).requires_grad
    torch.testing.assert_close(score.at(sigma=0.1)(x), density.at(sigma=0.1)(x))


def test_the_denoiser_of_a_gaussian_is_its_posterior_mean() -> None:
    """x + σ²s(x) = m + C(C + σ²I)⁻¹(x − m), Tweedie's formula."""
    mean, cov, x = points(3), spd(3), points(7, 3, seed=4)
    gain = cov @ torch.linalg.inv(cov + SIGMA**2 * torch.eye(3, dtype=torch_double))
    denoised = x + SIGMA**2 * Gaussian(mean, cov).at(sigma=SIGMA)(x)
    torch.testing.assert_close(denoised, mean + (x - mean) @ gain.T)


@pytest.mark.parametrize("name", VECTORS)
def test_the_stein_identity_holds_at_noised_points_and_not_at_clean_ones(name: str) -> None:
    p = DENSITIES[name]()
    score: DensityScore = p.at(sigma=SIGMA)
    clean = p.sample(20_000 if p.dim < 10 else 4000, generator())
    x, s = score.noised(clean, generator(1))

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.square().sum(1) + x.sin().sum(1)

    assert stein_identity(f, x, s, generator=generator(2)).consistent_with(0, z=4.5)
    assert abs(stein_identity(f, clean, score(clean), generator=generator(2)).z) > 8


def test_pairs_of_a_gaussian_have_a_closed_form() -> None:
    """along(x, v) = −σ (C + σ²I)⁻¹ v at every x, and a pair is that along the noise."""
    cov, v = spd(3), points(5, 3, seed=4)
    score = Gaussian(points(3), cov).at(sigma=SIGMA)
    smoothed = cov + SIGMA**2 * torch.eye(3, dtype=torch_double)
    expected = -SIGMA * torch.linalg.solve(smoothed, v.T).T
    torch.testing.assert_close(score.along(points(5, 3), v), expected)
    noise = torch.randn(5, 3, generator=generator(6), dtype=torch_double)
    pairs = score.paired(points(5, 3), generator(6))
    torch.testing.assert_close(pairs, score.along(points(5, 3), noise))


def test_the_buffers_move_with_the_score() -> None:
    score = Gaussian(points(2), spd(2)).at(sigma=SIGMA).float()
    assert isinstance(score, NoisedScore)
    assert all(buffer.dtype == torch.float32 for buffer in score.buffers())
    assert repr(score) == "DensityScore(sigma=0.6, of Gaussian(event_shape=(2,)))"


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan])
def test_the_level_is_positive(sigma: float) -> None:
    with pytest.raises(ValueError, match="sigma should be positive"):
        Gaussian(torch.zeros(2)).at(sigma=sigma)


def test_the_steepest_penalty_of_a_linear_network_on_a_table() -> None:
    """R = (σ ∇mᵀ(C + σ²I)⁻¹ sign ∇m)², with m = ±(w₁ − w₀)·x for two classes."""
    p = Gaussian(points(3).float(), spd(3).float())
    score, x, y = p.at(sigma=SIGMA), points(5, 3, seed=4).float(), torch.tensor([0, 1, 0, 1, 1])
    model = torch.nn.Linear(3, 2)
    weight = model.weight.detach()
    gradient = (weight[1] - weight[0]) * (1 - 2 * y)[:, None]
    penalty = taser.SteinPenalty(operator="first_order", center="none")
    value = penalty(model, x, y, score.along(x, -gradient.sign()))
    smoothed = p.cov + SIGMA**2 * torch.eye(3)
    drift = SIGMA * (gradient * torch.linalg.solve(smoothed, gradient.sign().T).T).sum(1)
    torch.testing.assert_close(value, drift.square().mean(), rtol=1e-3, atol=1e-5)


def test_a_difference_of_two_scores_is_one_call() -> None:
    calls: list[int] = []

    class Counting(NoisedScore):
        sigma = 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(x))
            return -x.square()

    x, v = points(5, 3), points(5, 3, seed=8)
    score = Counting()
    torch.testing.assert_close(score.along(x, v), -2 * x * 0.5 * v)
    score.paired(x, generator())
    assert calls == [10, 10]
