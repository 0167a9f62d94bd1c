"""Closed-form scores against autograd of their own log-density, and draws against both."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from taser.scores import (
    Affine,
    DenoisingScore,
    Density,
    Gaussian,
    GaussianMixture,
    KernelDensity,
    Score,
)

torch_double = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spd(d: int, m: int | None = None) -> Tensor:
    """Well-conditioned covariance matrices."""
    shape = (d, d) if m is None else (m, d, d)
    a = torch.randn(shape, generator=generator(1), dtype=torch_double)
    return a @ a.mT / d + 0.5 * torch.eye(d, dtype=torch_double)


def points(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch_double)


DENSITIES = {
    "gaussian 1": lambda: Gaussian(points(1), 0.7),
    "gaussian 2": lambda: Gaussian(points(2), spd(2)),
    "gaussian 50": lambda: Gaussian(points(50), spd(50)),
    "gaussian image": lambda: Gaussian(points(2, 3, 3), spd(18)),
    "mixture shared": lambda: GaussianMixture(points(3, 2), 0.3, torch.tensor([1.0, 2.0, 3.0])),
    "mixture full": lambda: GaussianMixture(points(4, 50), spd(50, 4)),
    "mixture image": lambda: GaussianMixture(points(3, 1, 2, 2), spd(4, 3)),
    "kde": lambda: KernelDensity(points(40, 3), 0.4),
    "kde image": lambda: KernelDensity(points(30, 1, 3, 3), 0.8),
}


@pytest.fixture(params=DENSITIES)
def density(request: pytest.FixtureRequest) -> Density:
    return DENSITIES[request.param]()


def test_score_is_the_gradient_of_the_log_density(
    density: Density, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taser.scores._densities.CHUNK", 7)
    x = density.sample(20, generator()) + 0.1
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(density.log_prob(leaf).sum(), leaf)
    torch.testing.assert_close(density(x), gradient, rtol=1e-9, atol=1e-9)


def test_score_keeps_the_contract(density: Density) -> None:
    x = density.sample(5, generator()).requires_grad_()
    s = density(x)
    assert s.shape == x.shape
    assert not s.requires_grad
    assert density(x.detach().float()).dtype == torch.float32
    assert isinstance(density, Score)


@pytest.mark.parametrize("name", ["gaussian 2", "mixture shared", "kde"])
def test_samples_have_the_mean_score_zero(name: str) -> None:
    """E_p[s] = 0, and E_p[s (x − c)ᵀ] = −I: both would fail for draws from another law."""
    p = DENSITIES[name]()
    n = 40_000
    x = p.sample(n, generator(5))
    s = p(x)
    centred = x - x.mean(0)
    for products, expected in (
        (s, torch.zeros(p.dim, dtype=torch_double)),
        ((s[:, :, None] * centred[:, None]).flatten(1), -torch.eye(p.dim).double().flatten()),
    ):
        z = (products.mean(0) - expected) / (products.std(0) / n**0.5)
        assert z.abs().max() < 4.5


def test_log_densities_are_normalised() -> None:
    x = points(8, 2)
    mean, cov = points(2), spd(2)
    expected = stats.multivariate_normal(mean.numpy(), cov.numpy()).logpdf(x.numpy())
    torch.testing.assert_close(Gaussian(mean, cov).log_prob(x), torch.as_tensor(expected))
    grid = torch.linspace(-8, 8, 4001, dtype=torch_double)[:, None]
    for p in (GaussianMixture(points(3, 1), 0.3), KernelDensity(points(9, 1), 0.2)):
        assert abs(float(torch.trapezoid(p.log_prob(grid).exp(), grid[:, 0])) - 1) < 1e-8


def test_scores_keep_their_precision_under_autocast_and_for_half_inputs() -> None:
    points_, x = points(30, 4).float(), points(6, 4, seed=3).bfloat16()
    for p in (KernelDensity(points_, 0.3), Gaussian(points_[0], 0.5)):
        expected = p(x.float())
        with torch.autocast("cpu", torch.bfloat16):
            inside, half = p(x.float()), p(x)
        torch.testing.assert_close(inside, expected)
        torch.testing.assert_close(half, expected.bfloat16())
    assert Gaussian(torch.zeros(2))(torch.ones(1, 2).double()).dtype == torch.float64


def test_one_component_mixture_is_the_gaussian() -> None:
    x, mean, cov = points(6, 3), points(3), spd(3)
    torch.testing.assert_close(GaussianMixture(mean[None], cov)(x), Gaussian(mean, cov)(x))


def test_far_from_every_component_the_score_stays_finite() -> None:
    x = torch.full((1, 2), 1e3)
    for p in (GaussianMixture(torch.zeros(2, 2), 0.01), KernelDensity(torch.zeros(5, 2), 0.1)):
        assert torch.isfinite(p(x)).all()


def test_fit_recovers_the_moments() -> None:
    p = Gaussian(points(3), spd(3))
    n = 50_000
    fitted = Gaussian.fit(p.sample(n, generator(3)), shrinkage=0.0)
    sigma = p.cov
    difference = fitted.cov - sigma
    stderr = ((sigma.diagonal()[:, None] * sigma.diagonal() + sigma.square()) / n).sqrt()
    assert (difference / stderr).abs().max() < 4.5
    constant_pixel = torch.cat([points(50, 2), torch.zeros(50, 1, dtype=torch_double)], 1)
    assert torch.isfinite(Gaussian.fit(constant_pixel)(constant_pixel)).all()


@pytest.mark.parametrize(
    ("scale", "shift"),
    [(2.0, -1.0), (torch.tensor([[[0.5]], [[3.0]]]), torch.tensor([[[1.0]], [[-2.0]]]))],
)
def test_affine_applies_the_chain_rule(scale: Tensor | float, shift: Tensor | float) -> None:
    """Against autograd of x ↦ log p_u(scale·x + shift), whose Jacobian is a constant."""
    p = GaussianMixture(points(3, 2, 2, 2), 0.6)
    x = points(5, 2, 2, 2, seed=4).requires_grad_()
    (expected,) = torch.autograd.grad(p.log_prob(scale * x + shift).sum(), x)
    s = Affine(p, scale, shift)(x)
    torch.testing.assert_close(s, expected)
    assert not s.requires_grad


def test_affine_detaches_a_score_that_does_not() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert not Affine(lambda x: weight * x)(torch.zeros(1, 2)).requires_grad


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Gaussian(torch.zeros(2), torch.eye(3)), r"\(2, 2\)"),
        (lambda: Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.0], [0.5, 1.0]])), "symmetric"),
        (lambda: Gaussian(torch.zeros(2), -torch.eye(2)), "positive definite"),
        (lambda: Gaussian(torch.zeros(2), torch.eye(2).expand(3, 2, 2)), "stack of 3"),
        (lambda: Gaussian.fit(torch.zeros(4, 2), shrinkage=2.0), r"\[0, 1\]"),
        (lambda: GaussianMixture(torch.zeros(2, 1), 1.0, torch.ones(3)), "2 numbers"),
        (lambda: KernelDensity(torch.zeros(3, 1), 0.0), "positive"),
        (lambda: Gaussian(torch.zeros(2))(torch.zeros(4, 3)), r"\(2,\); got x of shape \(4, 3\)"),
        (lambda: Gaussian(torch.zeros(2))(torch.zeros(4, 2, dtype=torch.uint8)), "floating point"),
        (lambda: Affine(Gaussian(torch.zeros(2)), 0.0), "nowhere zero"),
    ],
)
def test_bad_input_is_named(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]


def test_whole_numbers_are_reported() -> None:
    whole = torch.arange(6).view(3, 2)
    for build in (
        lambda: Gaussian(whole[0]), lambda: Gaussian.fit(whole), lambda: GaussianMixture(whole),
        lambda: KernelDensity(whole, 1.0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="should be floating point"):
            build()
    with pytest.raises(ValueError, match=r"x should be floating point; got torch\.uint8"):
        DenoisingScore(lambda x, _: x, 0.1)(torch.zeros(4, 2, dtype=torch.uint8))
    for call in (Gaussian, Gaussian.fit, KernelDensity(torch.zeros(3, 2), 1.0),
                 DenoisingScore(lambda x, _: x, 0.1)):  # fmt: skip
        with pytest.raises(TypeError, match=r"should be a tensor; got ndarray"):
            call(torch.zeros(4, 2).numpy())  # type: ignore[operator]
    assert Affine(Gaussian(torch.zeros(2)), scale=2, shift=-1).scale.is_floating_point()
