"""Closed forms: the exact posterior mean of a Gaussian, wrapped as each kind of model.

Whatever the parameterisation, the score has to be that of the Gaussian after noise.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import taser
from taser.scores import (
    DenoisingScore,
    Gaussian,
    from_diffusers,
    from_edm,
    normalised,
    sigma_of,
)

SHAPE = (1, 3, 3)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class GaussianData:
    """x₀ ~ N(μ, Σ) on pixels, with its closed forms."""

    def __init__(self) -> None:
        d = 9
        a = torch.randn(d, d, generator=generator(1), dtype=torch.float64)
        self.mean = 0.5 + 0.1 * torch.randn(SHAPE, generator=generator(2), dtype=torch.float64)
        self.cov = 0.02 * (a @ a.T / d + 0.3 * torch.eye(d, dtype=torch.float64))

    def smoothed(self, sigma: float) -> Gaussian:
        return Gaussian(self.mean, self.cov + sigma**2 * torch.eye(9, dtype=torch.float64))

    def posterior_mean(self, x: Tensor, sigma: float) -> Tensor:
        """E[x₀ | x₀ + σε = x], in pixels."""
        gain = self.cov @ torch.linalg.inv(self.cov + sigma**2 * torch.eye(9).double())
        return self.mean + ((x - self.mean).flatten(1) @ gain.T).view_as(x)

    def posterior_mean_u(self, u: Tensor, sigma_u: float) -> Tensor:
        """The same in u = 2x − 1, where noise and data are twice as wide."""
        return 2 * self.posterior_mean((u + 1) / 2, sigma_u / 2) - 1


@pytest.fixture
def data() -> GaussianData:
    return GaussianData()


@pytest.fixture
def x(data: GaussianData) -> Tensor:
    return data.smoothed(0.1).sample(20, generator(3))


class DiffusersModel:
    """The posterior mean with the interface of a UNet2DModel."""

    def __init__(self, data: GaussianData, alphas: Tensor, prediction: str) -> None:
        self.data, self.alphas, self.prediction = data, alphas.double(), prediction

    def __call__(self, x_t: Tensor, t: Tensor) -> Any:
        a = float(self.alphas[int(t[0])])
        signal, noise = a**0.5, (1 - a) ** 0.5
        u0 = self.data.posterior_mean_u(x_t / signal, noise / signal)
        epsilon = (x_t - signal * u0) / noise
        sample = {
            "epsilon": epsilon,
            "sample": u0,
            "v_prediction": signal * epsilon - noise * u0,
        }[self.prediction]
        return SimpleNamespace(sample=sample)


@pytest.mark.parametrize("timestep", [10, 50, 200])
@pytest.mark.parametrize("kind", ["DDPMScheduler", "DDIMScheduler"])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_diffusers_models_give_the_smoothed_score(
    data: GaussianData, x: Tensor, prediction: str, kind: str, timestep: int
) -> None:
    diffusers = pytest.importorskip("diffusers", reason="the extra taser[diffusers]")
    scheduler = getattr(diffusers, kind)(prediction_type=prediction)
    model = DiffusersModel(data, scheduler.alphas_cumprod, prediction)
    score = from_diffusers(model, scheduler, timestep=timestep)
    assert score.sigma == pytest.approx(sigma_of(timestep), rel=1e-4)  # float32 alphas
    torch.testing.assert_close(score(x), data.smoothed(score.sigma)(x), rtol=1e-5, atol=1e-5)


def test_a_timestep_is_of_the_models_own_schedule(data: GaussianData, x: Tensor) -> None:
    """Of the cosine schedule, t = 50 is σ = 0.046; of DDPM's linear one it is 0.088."""
    diffusers = pytest.importorskip("diffusers", reason="the extra taser[diffusers]")
    scheduler = diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2")
    score = from_diffusers(DiffusersModel(data, scheduler.alphas_cumprod, "epsilon"), scheduler)
    assert score.sigma == pytest.approx(0.046, abs=0.001)
    again = score.at(timestep=200).at(timestep=50)
    assert again.sigma == score.at().sigma == score.sigma
    torch.testing.assert_close(again(x), score(x))
    with pytest.raises(ValueError, match="0…999"):
        score.at(timestep=1000)


def test_flow_matching_gives_the_smoothed_score(data: GaussianData, x: Tensor) -> None:
    """x_t = (1 − τ) u + τ ε, and the model returns ε − u."""
    diffusers = pytest.importorskip("diffusers", reason="the extra taser[diffusers]")

    def model(x_t: Tensor, t: Tensor) -> Any:
        tau = float(t[0]) / 1000
        u0 = data.posterior_mean_u(x_t / (1 - tau), tau / (1 - tau))
        return SimpleNamespace(sample=(x_t - (1 - tau) * u0) / tau - u0)

    score = from_diffusers(model, diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0), timestep=60)
    assert score.sigma == pytest.approx(0.5 * 0.06 / 0.94)
    torch.testing.assert_close(score(x), data.smoothed(score.sigma)(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="positive"):
        score.at(timestep=0)


def test_variance_exploding_models_give_the_smoothed_score(data: GaussianData, x: Tensor) -> None:
    """x_t = x + σε on pixels in [0, 1]; the model takes σ and returns the score."""
    diffusers = pytest.importorskip("diffusers", reason="the extra taser[diffusers]")
    scheduler = diffusers.ScoreSdeVeScheduler()
    score = from_diffusers(
        lambda x, sigma: SimpleNamespace(sample=data.smoothed(float(sigma[0]))(x)), scheduler,
        timestep=400,
    )  # fmt: skip
    assert score.sigma == pytest.approx(float(scheduler.discrete_sigmas[400]))
    torch.testing.assert_close(score(x), data.smoothed(score.sigma)(x), rtol=1e-5, atol=1e-5)


def test_a_learned_variance_is_left_out(data: GaussianData, x: Tensor) -> None:
    diffusers = pytest.importorskip("diffusers", reason="the extra taser[diffusers]")
    scheduler = diffusers.DDPMScheduler(variance_type="learned_range")
    model = DiffusersModel(data, scheduler.alphas_cumprod, "epsilon")

    def both(x_t: Tensor, t: Tensor) -> Any:
        mean = model(x_t, t).sample
        return SimpleNamespace(sample=torch.cat([mean, torch.full_like(mean, 7.0)], 1))

    assert torch.equal(from_diffusers(both, scheduler)(x), from_diffusers(model, scheduler)(x))


def test_the_scheduler_in_the_folder_is_read_as_what_it_is(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers", reason="the extra taser[diffusers]")
    unet = diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8,), layers_per_block=1,
        norm_num_groups=4, down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
        time_embedding_type="fourier",
    )  # fmt: skip
    unet.save_pretrained(tmp_path)
    scheduler = diffusers.ScoreSdeVeScheduler()
    scheduler.save_pretrained(tmp_path)
    images = torch.rand(3, 1, 8, 8, generator=generator())
    s = from_diffusers(tmp_path, timestep=300)(images)
    torch.testing.assert_close(s, from_diffusers(unet.eval(), scheduler, timestep=300)(images))
    diffusers.EDMEulerScheduler().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"should be DDPM, .*got EDMEulerScheduler"):
        from_diffusers(tmp_path)
    (tmp_path / "scheduler_config.json").write_text('{"_class_name": "UNet2DModel"}')
    with pytest.raises(ValueError, match="names no scheduler of diffusers"):
        from_diffusers(tmp_path)


@pytest.mark.parametrize("coordinates", ["[-1,1]", "[0,1]"])
def test_edm_networks_give_the_smoothed_score(
    data: GaussianData, x: Tensor, coordinates: Any
) -> None:
    denoise = data.posterior_mean_u if coordinates == "[-1,1]" else data.posterior_mean
    score = from_edm(lambda x, s: denoise(x, float(s[0])), 0.07, coordinates=coordinates)
    torch.testing.assert_close(score(x), data.smoothed(0.07)(x), rtol=1e-5, atol=1e-5)


def test_the_stein_identity_holds_at_noised_points_and_not_at_clean_ones(
    data: GaussianData,
) -> None:
    clean = data.smoothed(0.0).sample(8000, generator(4))
    score = DenoisingScore(data.posterior_mean, 0.08)
    noised, s = score.noised(clean, generator(5))

    def f(x: Tensor) -> Tensor:
        return x.flatten(1).square().sum(1)

    assert taser.stein.identities.stein_identity(f, noised, s).consistent_with(0)
    assert abs(taser.stein.identities.stein_identity(f, clean, score(clean)).z) > 10


@pytest.mark.parametrize("timestep", [10, 25, 50, 100, 200])
def test_normalised_scores_have_one_size_at_every_timestep(
    data: GaussianData, x: Tensor, timestep: int
) -> None:
    reference = DenoisingScore(data.posterior_mean, sigma_of(50))(x).std()
    score = DenoisingScore(data.posterior_mean, sigma_of(timestep))
    scaled = normalised(score, x, sigma_of(50))
    torch.testing.assert_close(scaled(x).std(), reference)
    # The paper's own ratio, upside down, would make it differ by the square of this.
    assert scaled.factor == pytest.approx(float(reference / score(x).std()))
    assert scaled.sigma == score.sigma
    moved, s = scaled.noised(x, generator(1))
    points, own = score.noised(x, generator(1))
    assert torch.equal(moved, points)
    torch.testing.assert_close(s, scaled.factor * own)


def test_pairs_are_the_noise_that_is_recognised(data: GaussianData, x: Tensor) -> None:
    """A Gaussian's score is linear: −Jε/σ, J = −σ²∇s, with nothing of x itself."""
    score = DenoisingScore(data.posterior_mean, 0.3)
    s = score.paired(x, generator(1))
    moved, _ = score.noised(x, generator(1))
    torch.testing.assert_close(s, score(moved) - score(x))  # ∇s·σε
    scaled = normalised(score, x, 0.1)
    torch.testing.assert_close(scaled.paired(x, generator(1)), scaled.factor * s)


def test_scores_carry_no_graph(x: Tensor) -> None:
    """Even if the network does not detach."""
    weight = torch.ones(3, requires_grad=True)
    assert not DenoisingScore(lambda x, _: weight * x, 0.1)(x).requires_grad


def test_a_real_unet_goes_from_disk_to_a_penalty(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers", reason="the extra taser[diffusers]")
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 16),
        layers_per_block=1, norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    unet.save_pretrained(tmp_path)
    diffusers.DDPMScheduler().save_pretrained(tmp_path)
    score = from_diffusers(tmp_path)
    images = torch.rand(6, 1, 8, 8, generator=generator())
    s = score(images)
    assert s.shape == images.shape
    assert not s.requires_grad
    torch.testing.assert_close(s, from_diffusers(unet.eval(), diffusers.DDPMScheduler())(images))
    (tmp_path / "diffusion_pytorch_model.safetensors").unlink()
    torch.save(unet.state_dict(), tmp_path / "diffusion_pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        from_diffusers(tmp_path, diffusers.DDPMScheduler())
    torch.testing.assert_close(from_diffusers(str(tmp_path), safetensors_only=False)(images), s)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    value = taser.SteinPenalty()(model, images, torch.arange(6), s)
    value.backward()
    assert value > 0


def test_what_adapters_refuse(data: GaussianData, x: Tensor) -> None:
    alphas = torch.linspace(0.99, 0.1, 100)
    wrong = SimpleNamespace(
        alphas_cumprod=alphas, config=SimpleNamespace(prediction_type="flow_prediction")
    )
    model = DiffusersModel(data, alphas, "epsilon")
    with pytest.raises(ValueError, match="'flow_prediction'"):
        from_diffusers(model, wrong)
    right = SimpleNamespace(alphas_cumprod=alphas, config=SimpleNamespace())
    with pytest.raises(ValueError, match="0…99"):
        from_diffusers(model, right, timestep=500)
    with pytest.raises(ValueError, match="scheduler"):
        from_diffusers(model)
    with pytest.raises(ValueError, match="coordinates"):
        from_edm(lambda x, _: x, 0.1, coordinates="[0,255]")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive"):
        from_edm(lambda x, _: x, 0.0)
    with pytest.raises(ValueError, match="shape it was given"):
        from_edm(lambda x, _: x[:, 0], 0.1)(x)


def test_a_score_stays_in_evaluation_mode_whatever_holds_it() -> None:
    """Dropout would make the score random."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Dropout(0.5))

        def forward(self, x: Tensor, _: Tensor) -> Tensor:
            return self.inner(x)

    assert not any(module.training for module in DenoisingScore(Network(), 0.1).modules())
    score = from_edm(Network(), 0.1)
    holder = nn.ModuleList([score]).train()
    assert holder.training
    assert not any(module.training for module in score.modules())
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(score(x), score(x))
