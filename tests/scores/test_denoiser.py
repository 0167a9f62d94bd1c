"""The denoiser: its preconditioning, its training, its file, its resumption."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from taser.data import load
from taser.scores import Denoiser, FitConfig, Gaussian, fit, pretrained, sigma_of, timestep_of
from taser.scores._denoiser import sample
from taser.scores._fit import denoising_loss


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_timesteps_are_those_of_ddpm() -> None:
    """σ ≈ 0.17 in [-1, 1] at t = 50, and the way back."""
    assert 2 * sigma_of(50) == pytest.approx(0.175, abs=0.003)
    diffusers = pytest.importorskip("diffusers", reason="the extra taser[diffusers]")
    alphas = diffusers.DDPMScheduler().alphas_cumprod.double()
    for t in (0, 50, 999):
        expected = 0.5 * ((1 - alphas[t]) / alphas[t]).sqrt()
        assert sigma_of(t) == pytest.approx(float(expected), rel=1e-3)  # its table is float32
        assert timestep_of(sigma_of(t)) == t


@pytest.mark.parametrize("width", [1, 4, 6, 20])
def test_any_width_runs(width: int) -> None:
    x = torch.rand(2, 1, 8, 8, generator=generator())
    assert Denoiser.for_data(x, width=width)(x, 0.1).shape == x.shape


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 16), (5,)])
def test_untrained_it_is_the_best_linear_guess(shape: tuple[int, ...]) -> None:
    """The network starts at zero, so D is the Wiener estimate of white data."""
    denoiser = Denoiser(shape, mean=0.4, std=0.3)
    x = torch.rand(4, *shape, generator=generator())
    gain = 0.3**2 / (0.3**2 + 0.1**2)
    torch.testing.assert_close(denoiser(x, 0.1), 0.4 + gain * (x - 0.4))


@pytest.mark.parametrize("options", [{"patch": 2}, {"blocks": 2}])
def test_every_option_runs_and_learns(options: dict) -> None:
    torch.manual_seed(0)
    x = torch.rand(32, 1, 8, 8, generator=generator()).round()
    denoiser = Denoiser.for_data(x, width=8, multipliers=(1, 2), **options)
    sigma, noise = torch.full((32,), 0.3), torch.randn(x.shape, generator=generator(1))
    before = denoising_loss(denoiser, x, sigma, noise).item()
    fitted = fit(denoiser, x, FitConfig(steps=150, batch=32, rate=1e-2))
    assert denoising_loss(fitted, x, sigma, noise).item() < 0.95 * before


def test_vectors_of_a_gaussian_give_its_score() -> None:
    """Against the closed form, better than halfway from no score at all."""
    torch.manual_seed(0)
    cov = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
    p = Gaussian(torch.zeros(2), cov)
    denoiser = Denoiser.for_data(p.sample(4000, generator()), width=64, blocks=2)
    fitted = fit(
        denoiser, p.sample(4000, generator()),
        FitConfig(steps=600, batch=256, noise_mean=-0.7, noise_std=0.5),
    )  # fmt: skip
    score = fitted.at(sigma=0.5)
    x, s = score.noised(p.sample(2000, generator(1)), generator(2))
    exact = Gaussian(torch.zeros(2), cov + 0.25 * torch.eye(2))(x)
    assert (s - exact).square().mean() < 0.05 * exact.square().mean()


def test_draws_are_of_the_type_that_the_network_has() -> None:
    denoiser = Denoiser((4,), mean=0.4, std=0.3, width=8)
    single = sample(denoiser, 3, steps=4, generator=generator())
    double = sample(denoiser.double(), 3, steps=4, generator=generator())
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single)


def test_draws_have_the_law_of_the_denoiser() -> None:
    """Untrained it is exact for N(mean, std²); 4.5 standard errors, and 24 steps leave 2 %."""
    x = sample(Denoiser((4,), mean=0.4, std=0.3, width=8), 4000, generator=generator())
    assert float(x.mean()) == pytest.approx(0.4, abs=4.5 * 0.3 / x.numel() ** 0.5)
    assert float(x.std()) == pytest.approx(0.3, rel=0.03)


def digits() -> Tensor:
    return load("digits").train.x


def test_an_interrupted_training_ends_with_the_same_weights(
    tmp_path: Path,
) -> None:
    config = FitConfig(steps=12, batch=16, save_every=0.0)

    def start() -> Denoiser:
        torch.manual_seed(0)
        return Denoiser.for_data(digits(), width=8, multipliers=(1, 2))

    whole = fit(start(), digits(), config)

    class Interrupted(Exception):
        pass

    def interrupt(done: int, _total: int, _label: str) -> None:
        if done == 7:
            raise Interrupted

    with pytest.raises(Interrupted):
        fit(start(), digits(), config, checkpoint=tmp_path / "run", progress=interrupt)
    assert (tmp_path / "run").exists()
    for other in (replace(config, batch=8), replace(config, seed=7)):
        with pytest.raises(ValueError, match=r"a training with other (batch|seed); remove it"):
            fit(start(), digits(), other, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="with other data"):
        fit(start(), digits().flip(0), config, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="with other network"):
        fit(Denoiser.for_data(digits(), width=4), digits(), config, checkpoint=tmp_path / "run")
    resumed = fit(start(), digits(), config, checkpoint=tmp_path / "run")
    again = fit(start(), digits(), config, checkpoint=tmp_path / "run")  # what is done stays done
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_resumed_training_may_be_longer_or_shorter(tmp_path: Path) -> None:
    config, steps = FitConfig(steps=3, batch=8), []

    def count(done: int, total: int, _label: str) -> None:
        steps.append((done, total))

    for changed in (config, replace(config, steps=5), replace(config, steps=9, minutes=1e-9)):
        denoiser = Denoiser.for_data(digits(), width=4)
        fit(denoiser, digits(), changed, checkpoint=tmp_path / "run", progress=count)
    assert steps == [(1, 3), (2, 3), (3, 3), (4, 5), (5, 5)]


def test_a_file_brings_back_the_same_denoiser(tmp_path: Path) -> None:
    torch.manual_seed(0)
    denoiser = Denoiser((1, 8, 8), mean=0.3, std=0.4, width=8, multipliers=(1, 2), patch=2)
    torch.nn.init.normal_(denoiser.network.head[2].weight)  # type: ignore[union-attr, index]
    x = torch.rand(3, 1, 8, 8, generator=generator())
    again = Denoiser.load(denoiser.save(tmp_path / "full.safetensors"))
    torch.testing.assert_close(again(x, 0.1), denoiser(x, 0.1), rtol=0, atol=0)
    half = Denoiser.load(denoiser.save(tmp_path / "half.safetensors", half=True))
    torch.testing.assert_close(half(x, 0.1), denoiser(x, 0.1), rtol=1e-2, atol=1e-2)
    assert (tmp_path / "half.safetensors").stat().st_size < 0.6 * (
        tmp_path / "full.safetensors"
    ).stat().st_size


def test_the_shipped_denoiser_beats_the_best_linear_one() -> None:
    """On held-out digits at t = 50 by at least a quarter of the error."""
    data = load("digits")
    sigma = sigma_of(50)
    x, s = pretrained("digits").at(timestep=50).noised(data.test.x, generator())
    error = (x + sigma**2 * s - data.test.x).square().mean()
    best = Gaussian.fit(data.train.x.double(), 1e-6).at(sigma=sigma)
    linear = (x + sigma**2 * best(x) - data.test.x).square().mean()
    assert error < 0.75 * linear
    with pytest.raises(ValueError, match="ship for digits, mnist"):
        pretrained("imagenet")


@pytest.mark.parametrize(
    ("name", "shape", "level"),
    [
        ("cifar10", (3, 32, 32), 0.4),
        ("mnist", (1, 28, 28), 0.0),
        ("fashion-mnist", (1, 28, 28), 0.0),
        ("fashion-mnist-large", (1, 28, 28), 0.0),
    ],
)
def test_the_shipped_denoisers_take_noise_away(
    name: str, shape: tuple[int, ...], level: float
) -> None:
    """Even on flat pictures it removes most of the noise at t = 50."""
    clean = torch.full((4, *shape), level)
    score = pretrained(name).at(timestep=50)
    noised, s = score.noised(clean, generator())
    assert (noised + score.sigma**2 * s - clean).square().mean() < 0.2 * score.sigma**2


def test_what_is_not_a_denoiser_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "noise").write_bytes(b"\x00" * 100)
    with pytest.raises(ValueError, match="not a safetensors file"):
        Denoiser.load(tmp_path / "noise")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other")
    with pytest.raises(ValueError, match="no taser denoiser"):
        Denoiser.load(tmp_path / "other")
    for config in ("[]", "{", "{}", '{"event_shape": 3, "network": {}}',
                   '{"event_shape": [2], "network": {}, "std": "x"}',
                   '{"event_shape": [2], "network": {}}'):  # fmt: skip
        header = {"kind": "taser.denoiser", "config": config}
        save_file({"weight": torch.zeros(2)}, tmp_path / "odd", header)
        with pytest.raises(ValueError, match="odd does not hold the denoiser that its header"):
            Denoiser.load(tmp_path / "odd")
    (tmp_path / "state").write_bytes(b"not a state")
    denoiser = Denoiser((1, 8, 8), width=8, multipliers=(1, 2))
    with pytest.raises(ValueError, match="should be a folder of checkpoints; it is a file"):
        fit(denoiser, digits(), FitConfig(steps=1), checkpoint=tmp_path / "state")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Denoiser((8, 8)), r"\(C, H, W\) or \(d,\)"),
        (lambda: Denoiser((4,), std=0.0), "positive"),
        (lambda: Denoiser((4,))(torch.zeros(2, 5), 0.1), r"\(4,\); got \(5,\)"),
        (
            lambda: Denoiser((1, 28, 28), multipliers=(1, 2, 2), patch=2)(
                torch.zeros(1, 1, 28, 28), 0.1
            ),
            r"divisible by 8; got \(28, 28\): use fewer multipliers",
        ),
        (lambda: Denoiser((4,)).at(timestep=50, sigma=0.1), "not both"),
        (lambda: Denoiser((4,)).at(timestep=5000), "0…999"),
        (lambda: Denoiser((4,)).at(sigma=-1.0), "positive"),
        (lambda: FitConfig(steps=0), "positive"),
        (lambda: FitConfig(minutes=0.0), "positive"),
        (lambda: FitConfig(rate=0.0), "positive"),
        (lambda: FitConfig(ema=1.0), r"\[0, 1\)"),
        (
            lambda: fit(Denoiser((4,)), torch.zeros(8, 4), FitConfig(steps=1, flip=True)),
            r"flip is for images; these inputs have shape \(4,\)",
        ),
    ],
)
def test_bad_input_is_named(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_inputs_of_another_type_are_computed_in_the_networks_own(dtype: torch.dtype) -> None:
    x = digits()[:4].to(dtype)
    score = pretrained("digits").at()
    assert score(x).dtype == dtype
    rounding = 8 * 2**-24 / score.sigma**2  # of float32 in D − x, times a few
    torch.testing.assert_close(score(x), score(x.float()).to(dtype), rtol=1e-3, atol=rounding)


def test_a_denoiser_alone_is_no_score() -> None:
    with pytest.raises(ValueError, match=r"denoiser\.at\(timestep=50\)"):
        pretrained("digits")(torch.rand(2, 1, 8, 8))
