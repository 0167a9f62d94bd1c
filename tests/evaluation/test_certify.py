"""Randomised smoothing: against a linear classifier's exact radius, scipy, and coverage."""

import json
import math
import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import binom, binomtest, norm
from torch import Tensor, nn
from typer.testing import CliRunner

import taser
from taser.cli import app
from taser.evaluation import attack_smoothed, certify, read_certificates
from taser.evaluation._certify import (
    NoisyClassifier,
    Sampling,
    certified_radius,
    probability_bounds,
)

FREE = {"box": (None, None)}


def linear(n: int, d: int = 4) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A linear classifier of two classes, inputs, labels, and the exact distances |w·x|/‖w‖."""
    generator = torch.Generator().manual_seed(0)
    w, x = torch.randn(d, generator=generator), torch.randn(n, d, generator=generator) / 2
    model = nn.Linear(d, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.stack([-w, w]))
    return model, x, (x @ w > 0).long(), (x @ w).abs() / w.norm()


def test_the_radius_of_a_linear_classifier_is_never_above_the_exact_one() -> None:
    """Up to the share alpha of the examples; here none of 1,000 at alpha = 0.001."""
    model, x, y, exact = linear(1000)
    found = certify(model, x, y, sigma=0.25, n=1000, draws=500, selection=20, **FREE)
    above = found.radius > exact[found.index]
    assert int(above.sum()) <= binom.ppf(0.9999, 1000, 0.001)
    assert 0.3 < found.accuracy(0.25).value <= float((exact >= 0.25).float().mean())
    assert torch.equal(found.prediction[found.radius > 0], found.y[found.radius > 0])
    assert found.noise_std.mean() == pytest.approx(0.25, rel=0.01)


def test_the_radius_is_close_to_the_exact_one_with_many_draws() -> None:
    """Within 3 % at 100,000 draws, where p is neither near ½ nor near 1."""
    model, x, y, exact = linear(60)
    chosen = ((exact > 0.15) & (exact < 0.5)).nonzero()[:8, 0]
    x, y, exact = x[chosen], y[chosen], exact[chosen]
    found = certify(model, x, y, sigma=0.25, draws=100_000, batch_size=100_000, **FREE)
    ratio = found.radius / exact[found.index]
    assert len(chosen) == 8
    assert bool((ratio > 0.97).all())
    assert bool((ratio < 1).all())


@pytest.mark.parametrize("drawn", [1, 10, 1000, 100_000])
def test_bounds_and_radii_are_those_of_scipy(drawn: int) -> None:
    for count in {0, 1, drawn // 3, drawn // 2, drawn - 1, drawn}:
        for alpha in (0.001, 0.05):
            low, high = probability_bounds(count, drawn, alpha)
            exact = binomtest(count, drawn).proportion_ci(1 - 2 * alpha, method="exact")
            assert low == pytest.approx(exact.low, abs=1e-12)
            assert high == pytest.approx(exact.high, abs=1e-12)
            radius = certified_radius(count, drawn, alpha, 0.5)
            assert radius == pytest.approx(max(0.0, 0.5 * norm.ppf(low)), abs=1e-12)


@pytest.mark.parametrize("radii", [(), (0.1 + 1e-6,), (0.1 + 1e-6, 0.2, 0.05)])
def test_coverage_by_simulation(radii: tuple[float, ...]) -> None:
    """At alpha = 0.2 the bound, also of the sequential procedure, is above p at most so often.

    One example whose exact radius is 0.1, certified 400 times with other noise.
    """
    model, x, y, exact = linear(1)
    same = (x * (0.1 / exact)).expand(400, -1)
    options: dict[str, Any] = {"draws": 400, "selection": 8, "alpha": 0.2, "n": 400}
    found = certify(model, same, y.expand(400), sigma=0.25, radii=radii, **options, **FREE)
    wrong = int((found.radius > 0.1 + 1e-6).sum())
    assert wrong <= binom.ppf(0.999, 400, 0.2)
    assert not radii or len(set(found.drawn.tolist())) > 1  # draws did end early


@pytest.mark.parametrize("p", [0.55, 0.8, 0.97])
@pytest.mark.parametrize("drawn", [100, 1000])
def test_the_sequential_bound_is_wrong_at_most_as_often_as_alpha(p: float, drawn: int) -> None:
    """20,000 binomial sequences with known p, stopped where the procedure stops."""
    alpha, repeats = 0.1, 20_000
    sampling = Sampling.of(1.0, [0.1, norm.ppf(p) + 1e-9, norm.ppf(p) + 0.1], drawn, alpha)
    assert sum(sampling.looks.values()) == pytest.approx(alpha)
    rng = np.random.default_rng(0)
    looks = list(sampling.looks)
    counts = np.cumsum(rng.binomial(np.diff([0, *looks]), p, (repeats, len(looks))), 1)
    wrong, bounds = 0, {}
    for row in counts.tolist():
        for count, look in zip(row, looks, strict=True):
            if (count, look) not in bounds:
                low = probability_bounds(count, look, sampling.looks[look])[0]
                bounds[count, look] = low, sampling.decided(count, look)
            low, decided = bounds[count, look]
            if decided:
                break
        wrong += low > p
    assert wrong <= binom.ppf(0.9999, repeats, alpha)


def test_wanted_radii_take_fewer_draws_to_the_same_accuracy() -> None:
    model, x, y, _ = linear(200)
    full = certify(model, x, y, sigma=0.25, n=200, draws=3200, **FREE)
    early = certify(model, x, y, sigma=0.25, n=200, draws=3200, radii=(0.3, 0.1), **FREE)
    for radius in (0.1, 0.3):
        found, wanted = early.accuracy(radius).value, full.accuracy(radius).value
        assert found == pytest.approx(wanted, abs=0.02)
    assert early.drawn.double().mean() < 0.5 * 3200
    assert bool((full.drawn == 3200).all())


def test_a_trained_network_takes_at_most_half_of_the_draws_to_the_same_accuracy() -> None:
    """Digits with noise; three of 100 images near a threshold may be decided otherwise."""
    torch.manual_seed(0)
    digits = taser.data.load("digits")
    model = taser.models.build("cnn", classes=10, shape=(1, 8, 8), width=8)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for x, y, *_ in (batch for _ in range(3) for batch in taser.data.Batches(digits.train, 32)):
        optimiser.zero_grad()
        F.cross_entropy(model(x + 0.25 * torch.randn_like(x)), y).backward()
        optimiser.step()
    radii, x, y = (0.125, 0.25, 0.375, 0.5), digits.test.x, digits.test.y
    full = certify(model, x, y, sigma=0.25, n=100, draws=4000)
    early = certify(model, x, y, sigma=0.25, n=100, draws=4000, radii=radii)
    assert early.drawn.double().mean() + 100 <= 0.5 * (4000 + 100)
    for radius in radii:
        found, wanted = early.accuracy(radius).value, full.accuracy(radius).value
        assert wanted > 0.2
        assert abs(found - wanted) <= 0.03


def test_a_run_that_was_killed_goes_on_to_the_same_record(tmp_path: Path) -> None:
    model, x, y, _ = linear(20)

    def stop(done: int, total: int, _label: str) -> None:
        if done < total:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"sigma": 0.25, "draws": 200, **FREE}
    with pytest.raises(KeyboardInterrupt):
        certify(model, x, y, out=tmp_path / "killed", progress=stop, **options)
    assert len(list((tmp_path / "killed" / "examples").glob("*.json"))) == 1
    certify(model, x, y, out=tmp_path / "killed", **options)
    whole = certify(model, x, y, out=tmp_path / "whole", **options)
    assert read_certificates(tmp_path / "killed").numbers() == whole.numbers()
    with pytest.raises(ValueError, match="other sigma"):
        certify(model, x, y, out=tmp_path / "killed", **{**options, "sigma": 0.5})


def _certify_some(out: Path, calls: Path, mark: str) -> None:
    model, x, y, _ = linear(40)

    def note(*_progress: Any) -> None:
        with calls.open("a") as file:
            file.write(mark)

    (model_calls := []).append(0)
    model.register_forward_hook(lambda *_: model_calls.append(0))
    certify(model, x, y, sigma=0.25, n=40, draws=20_000, out=out, progress=note, **FREE)
    (calls.parent / f"forwards-{mark}").write_text(str(len(model_calls)))


def test_processes_share_a_folder(tmp_path: Path) -> None:
    """Two at once compute each group once between them, and both end with the whole record."""
    context = multiprocessing.get_context("fork")
    calls = tmp_path / "calls"
    both = [context.Process(target=_certify_some, args=(tmp_path / "both", calls, mark))
            for mark in "ab"]  # fmt: skip
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    _certify_some(tmp_path / "one", calls, "c")
    shared, alone = (read_certificates(tmp_path / name) for name in ("both", "one"))
    assert shared.numbers() == alone.numbers()
    a, b, c = (int((tmp_path / f"forwards-{mark}").read_text()) for mark in "abc")
    assert a + b < 1.2 * c


def test_every_radius_can_be_recomputed_from_the_record(tmp_path: Path) -> None:
    model, x, y, _ = linear(20)
    certify(model, x, y, sigma=0.25, draws=640, radii=[0.1, 0.3], out=tmp_path, **FREE)
    record = json.loads((tmp_path / "certificates.json").read_text())
    levels = dict(record["looks"])
    assert list(levels) == [80, 160, 320, 640]
    for count, drawn, radius in zip(
        record["count"], record["drawn"], record["radius"], strict=True
    ):
        level = levels[drawn]
        bound = binomtest(count, drawn).proportion_ci(1 - 2 * level, method="exact").low
        assert radius == pytest.approx(max(0.0, 0.25 * norm.ppf(bound)), abs=1e-9)


def test_an_attack_bounds_the_certified_accuracy_from_above() -> None:
    """Of a linear classifier it reaches the exact robust accuracy, up to what votes can decide."""
    model, x, y, exact = linear(60)
    found = certify(model, x, y, sigma=0.25, n=60, draws=500, **FREE)
    radii = [0.1, 0.3]
    bounds = attack_smoothed(model, x, found, radii, steps=10, draws=400, **FREE)
    assert list(bounds) == [0.0, *radii]
    exact = exact[found.index]
    for radius in radii:
        above = bounds[radius]
        assert bool((above | ~found.certified(radius)).all())
        assert bool(above[exact > radius + 0.001].all())
        # Points just beyond the boundary have p close to ½, which 400 votes cannot decide.
        assert not above[exact < radius - 0.09].any()
    with pytest.raises(ValueError, match="the data should be those that were certified"):
        attack_smoothed(model, x + 1, found, radii, **FREE)
    with pytest.raises(ValueError, match="the weights should be those that were certified"):
        attack_smoothed(nn.Linear(4, 2), x, found, radii, **FREE)


def test_the_bound_from_above_does_not_count_abstentions_as_errors() -> None:
    """Near the boundary g abstains, and yet is right: only votes for another class count."""
    model, x, y, exact = linear(40)
    x = x * (0.01 / exact)[:, None]  # p = 0.516
    found = certify(model, x, y, sigma=0.25, n=40, draws=200, **FREE)
    assert found.abstained > 30
    assert attack_smoothed(model, x, found, [], draws=200, **FREE)[0.0].float().mean() >= 0.9
    wrong = certify(model, x * 100, 1 - y, sigma=0.25, n=40, draws=200, **FREE)
    assert not attack_smoothed(model, x * 100, wrong, [], draws=200, **FREE)[0.0].any()


def test_the_paired_difference_of_two_certificates() -> None:
    model, x, y, _ = linear(60)
    narrow, wide = (certify(model, x, y, sigma=s, n=60, draws=300, **FREE) for s in (0.1, 0.5))
    found, p_value = wide.difference(narrow, 0.3)
    share = [float(c.certified(0.3).double().mean()) for c in (wide, narrow)]
    assert found.value == pytest.approx(share[0] - share[1])
    assert found.excludes_zero()
    assert p_value < 0.05
    assert narrow.difference(narrow, 0.3)[0].value == 0
    other = certify(model, x + 0.1, y, sigma=0.1, n=60, draws=300, **FREE)
    with pytest.raises(ValueError, match="certified on other examples"):
        narrow.difference(other)


class Rounded(nn.Module):
    """Two classes whose logits differ by less than bfloat16 can tell in half of the draws."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 64)
        self.second = nn.Linear(64, 2)
        with torch.no_grad():
            self.second.weight[1] = self.second.weight[0] + 0.02 * torch.randn(64)
            self.second.bias.fill_(4.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def test_votes_in_half_precision_are_those_of_the_model_itself() -> None:
    torch.manual_seed(0)
    model, x = Rounded().eval(), torch.randn(16, 4)
    y = model(x).argmax(1)
    options: dict[str, Any] = {"sigma": 0.25, "draws": 2000, **FREE}
    full = certify(model, x, y, precision="float32", **options)
    half = certify(model, x, y, precision="bfloat16", **options)
    assert torch.equal(half.count, full.count)
    noisy, at, z = NoisyClassifier(model, 0.25), torch.randn(4000, 4), torch.randn(4000, 4)
    noisy.accelerate(x, y, "bfloat16")
    noisy.unsure = -1.0  # without the model's own answer near ties, votes do change
    plain = NoisyClassifier(model, 0.25).classes_of(at, z)[0]
    assert not torch.equal(noisy.classes_of(at, z)[0], plain)


def test_a_denoiser_in_front_certifies_an_untouched_network() -> None:
    """D of standard normal data is x/(1 + σ²); a threshold at 0 keeps its exact radius."""
    model, x, y, exact = linear(40)
    denoiser = taser.scores.DenoisingScore(lambda x, sigma: x / (1 + sigma**2), 0.25)
    found = certify(model, x, y, sigma=0.25, n=40, draws=500, denoiser=denoiser, **FREE)
    alone = certify(model, x, y, sigma=0.25, n=40, draws=500, **FREE)
    assert torch.equal(found.count, alone.count)  # the same sign of w·D(x) for the same noise
    assert bool((found.radius <= exact[found.index]).all())


class Posterior(nn.Module):
    """The exact denoiser of normal data u ~ N(0.2, 0.8²) in [-1, 1], by EDM's or DDPM's call."""

    def __init__(self, alphas: Tensor | None = None) -> None:
        super().__init__()
        self.alphas, self.seen = alphas, []

    def forward(self, u: Tensor, level: Tensor) -> Any:
        """EDM: D(u; σ). DDPM: the noise predicted from x_t = √ᾱ u + √(1−ᾱ) ε and t."""
        self.seen.append((u, level))
        if self.alphas is None:
            return _posterior(u, float(level[0]), 0.2, 0.8)
        alpha = float(self.alphas[int(level[0])])
        clean = _posterior(u / alpha**0.5, ((1 - alpha) / alpha) ** 0.5, 0.2, 0.8)
        return SimpleNamespace(sample=(u - alpha**0.5 * clean) / (1 - alpha) ** 0.5)


def _posterior(x: Tensor, sigma: float, mean: float, std: float) -> Tensor:
    return mean + std**2 / (std**2 + sigma**2) * (x - mean)


@pytest.mark.parametrize("kind", ["edm", "diffusers"])
def test_an_adapter_is_called_once_at_the_matching_level_in_its_own_coordinates(kind: str) -> None:
    """Pixels x = (u + 1)/2 ~ N(0.6, 0.4²): D is their posterior mean, and f sees it."""
    if kind == "edm":
        network = Posterior()
        score = taser.scores.from_edm(network, 0.1)
    else:
        diffusers = pytest.importorskip("diffusers")
        scheduler = diffusers.DDPMScheduler(num_train_timesteps=1000)
        network = Posterior(scheduler.alphas_cumprod)
        score = taser.scores.from_diffusers(network, scheduler)
    torch.manual_seed(0)
    x = (0.6 + 0.4 * torch.randn(64, 4)).clamp(0, 1)
    model = nn.Linear(4, 2)
    noisy = NoisyClassifier(model, 0.25, score)
    z = torch.randn_like(x)
    wanted = _posterior(x + 0.25 * z, 0.25, 0.6, 0.4)
    tolerance = 1e-5 if kind == "edm" else 5e-3  # the nearest of 1,000 timesteps
    torch.testing.assert_close(noisy(x, z), model(wanted), atol=tolerance, rtol=tolerance)
    ((seen, level),) = network.seen
    u = 2 * (x + 0.25 * z) - 1
    if kind == "edm":  # noise of 0.25 on pixels is 0.5 in [-1, 1]
        torch.testing.assert_close(seen, u)
        assert float(level[0]) == 0.5
    else:  # ᾱ = 1/(1 + 0.5²) is that of the nearest timestep, and the input is scaled by √ᾱ
        torch.testing.assert_close(seen, u * 0.8**0.5)
        assert float(network.alphas[int(level[0])]) == pytest.approx(0.8, abs=2e-3)
    found = certify(model, x, model(x).argmax(1), sigma=0.25, denoiser=score, draws=100)
    assert len(found.y) == 64


def test_a_denoiser_in_other_coordinates_is_refused() -> None:
    x, y = taser.data.load("digits").test.x[:32], torch.arange(32) % 10
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    own = taser.scores.pretrained("digits")  # of [0, 1]

    def of_wide(u: Tensor, level: Tensor) -> Tensor:  # as a network trained on [-1, 1] would be
        return 2 * own((u + 1) / 2, level / 2) - 1

    right = taser.scores.from_edm(of_wide, 0.1)
    for sigma in (0.12, 0.25, 0.5):
        certify(model, x, y, sigma=sigma, denoiser=right, draws=50)
        for wrong in (taser.scores.from_edm(of_wide, 0.1, coordinates="[0,1]"),
                      taser.scores.from_edm(own, 0.1)):  # fmt: skip
            with pytest.raises(ValueError, match=r"the denoiser leaves an error of .*\[-1, 1\]|"
                               r"if its inputs are in \[0, 1\]"):  # fmt: skip
                certify(model, x, y, sigma=sigma, denoiser=wrong, draws=50)


class OneLogit(nn.Module):
    """The logit of class 1 of a classifier of two."""

    outputs = "logit"

    def __init__(self, two: nn.Module) -> None:
        super().__init__()
        self.two = two

    def forward(self, x: Tensor) -> Tensor:
        return self.two(x) @ torch.tensor([[-1.0], [1.0]])


def test_one_logit_is_certified_as_two() -> None:
    model, x, y, _ = linear(20)
    found, wanted = (certify(m, x, y, sigma=0.25, draws=100, **FREE)
                     for m in (OneLogit(model), model))  # fmt: skip
    assert torch.equal(found.count, wanted.count)
    assert bool(attack_smoothed(OneLogit(model), x, found, [], draws=50, **FREE)[0.0].all())


class Stochastic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2] + torch.randn(len(x), 2)


def test_bad_input_is_refused_at_the_start() -> None:
    model, x, y, _ = linear(8)
    cases: list[tuple[str, dict[str, Any]]] = [
        (r"sigma should be positive", {"sigma": 0.0}),
        (r"sigma=64 is more than the range .*; did you mean 64/255", {"sigma": 64, "box": (0, 1)}),
        (r"x should lie in \[0, 1\]", {"sigma": 0.25, "box": (0.0, 1.0)}),
        (r"5 draws at sigma=0.25 .* a radius of at most 0, too few for any", {"draws": 5}),
        (r"100 draws .* too few for radius 2", {"draws": 100, "radii": [2.0, 3.0]}),
        (r"radii should be positive and finite", {"radii": [0.1, -1.0]}),
        (r"n, batch_size should be at least 1; got n=0", {"n": 0}),
        (r"alpha should lie in \(0, ½\)", {"alpha": 0.7}),
        (r"y should be in 0…1", {"y": y + 5}),
        (r"the model should give logits \(8, classes\)", {"model": nn.GRU(4, 2)}),
        (r"the model gives one number an example", {"model": nn.Linear(4, 1)}),
        (r"only a deterministic classifier can be certified", {"model": Stochastic()}),
        (r"y should be \(8,\) class numbers", {"y": x[:, 0]}),
    ]  # fmt: skip
    for message, wrong in cases:
        given: dict[str, Any] = {"model": model, "x": x, "y": y, "sigma": 0.25, **FREE, **wrong}
        with pytest.raises(ValueError, match=message):
            certify(given.pop("model"), given.pop("x"), given.pop("y"), **given)
    with pytest.raises(TypeError, match="radii should be"):
        certify(model, x, y, sigma=0.25, radii=0.25, **FREE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="denoiser should be such as"):
        certify(model, x, y, sigma=0.25, denoiser=lambda x: x, **FREE)
    random = taser.scores.DenoisingScore(lambda x, _: x + 0.1 * torch.randn_like(x), 0.25)
    with pytest.raises(ValueError, match="only a deterministic classifier"):
        certify(model, x, y, sigma=0.25, denoiser=random, **FREE)
    other = taser.scores.DenoisingScore(lambda x, _: 2 * x - 3, 0.25)
    with pytest.raises(ValueError, match="more than the noise: it was trained on other"):
        certify(model, x, y, sigma=0.25, denoiser=other, **FREE)


def test_the_command_line(tmp_path: Path) -> None:
    """A trained network behind the shipped denoiser, two noise levels, report and JSON."""
    run = tmp_path / "run"
    settings = [
        "loop.epochs=3", "data.examples=500", "validation.examples=50", "model.width=4",
        "loop.threads=1",
    ]  # fmt: skip
    trained = CliRunner().invoke(
        app, ["train", "--recipe", "digits/standard", "--out", str(run), *settings]
    )
    assert trained.exit_code == 0, trained.output
    command = [
        "certify", "--model", str(run), "--denoiser", "digits", "--sigma", "0.12",
        "--sigma", "0.25", "-n", "6", "--draws", "60", "--radius", "0.1", "--threads", "1",
        "--out", str(tmp_path / "out"), "--json",
    ]  # fmt: skip
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    numbers = json.loads(found.stdout)
    assert [entry["sigma"] for entry in numbers] == [0.12, 0.25]
    assert all(len(entry["radius"]) == 6 for entry in numbers)
    again = CliRunner().invoke(
        app, [*command[:-3], "--out", str(tmp_path / "again"), "--against", str(tmp_path / "out")]
    )
    assert "0.25 against 0.25, difference in points by radius: +0.0 [" in again.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "At σ = 0.12, " in page
    assert "under attack" in (tmp_path / "out" / "table.md").read_text()
    assert not math.isnan(np.mean(numbers[0]["radius"]))
