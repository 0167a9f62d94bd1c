"""Randomised smoothing: against a linear classifier's exact radius, scipy, and coverage."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest, norm
from torch import Tensor, nn
from typer.testing import CliRunner

import taser
from taser.cli import app
from taser.evaluation import attack_smoothed, certify, read_certificates
from taser.evaluation._certify import certified_radius, probability_bounds

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


@pytest.mark.parametrize("radius", [None, 0.1])
def test_coverage_by_simulation(radius: float | None) -> None:
    """At alpha = 0.2 the bound, also of the sequential procedure, is above p at most so often.

    One example whose exact radius is 0.1, certified 400 times with other seeds.
    """
    model, x, y, exact = linear(1)
    x, wrong = x * (0.1 / exact), 0
    for seed in range(400):
        options: dict[str, Any] = {"seed": seed, "draws": 64, "selection": 8, "alpha": 0.2}
        found = certify(model, x, y, sigma=0.25, radius=radius and radius + 1e-6, **options, **FREE)
        wrong += bool(found.radius > 0.1 + 1e-6)
    assert wrong <= binom.ppf(0.999, 400, 0.2)


def test_a_wanted_radius_takes_fewer_draws_to_the_same_accuracy() -> None:
    model, x, y, _ = linear(200)
    full = certify(model, x, y, sigma=0.25, n=200, draws=3200, **FREE)
    early = certify(model, x, y, sigma=0.25, n=200, draws=3200, radius=0.2, **FREE)
    assert early.accuracy(0.2).value == pytest.approx(full.accuracy(0.2).value, abs=0.02)
    assert early.drawn.double().mean() < 0.5 * 3200
    assert bool((full.drawn == 3200).all())


def test_a_run_that_was_killed_goes_on_to_the_same_record(tmp_path: Path) -> None:
    model, x, y, _ = linear(10)

    def stop(done: int, total: int, _label: str) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"sigma": 0.25, "draws": 200, **FREE}
    with pytest.raises(KeyboardInterrupt):
        certify(model, x, y, out=tmp_path / "killed", progress=stop, **options)
    lines = (tmp_path / "killed" / "examples.jsonl").read_text()
    assert 0 < lines.count("\n") < 10
    (tmp_path / "killed" / "examples.jsonl").write_text(lines + '{"index": 7, "y"')  # cut short
    certify(model, x, y, out=tmp_path / "killed", **options)
    whole = certify(model, x, y, out=tmp_path / "whole", **options)
    assert read_certificates(tmp_path / "killed").numbers() == whole.numbers()
    with pytest.raises(ValueError, match="other sigma"):
        certify(model, x, y, out=tmp_path / "killed", **{**options, "sigma": 0.5})


def test_every_radius_can_be_recomputed_from_the_record(tmp_path: Path) -> None:
    model, x, y, _ = linear(20)
    certify(model, x, y, sigma=0.25, draws=640, radius=0.3, out=tmp_path, **FREE)
    record = json.loads((tmp_path / "certificates.json").read_text())
    level = record["alpha"] / record["looks"]
    for count, drawn, radius in zip(
        record["count"], record["drawn"], record["radius"], strict=True
    ):
        bound = binomtest(count, drawn).proportion_ci(1 - 2 * level, method="exact").low
        assert radius == pytest.approx(max(0.0, 0.25 * norm.ppf(bound)), abs=1e-9)


def test_an_attack_bounds_the_certified_accuracy_from_above() -> None:
    """Of a linear classifier it reaches the exact robust accuracy, up to what votes can decide."""
    model, x, y, exact = linear(60)
    found = certify(model, x, y, sigma=0.25, n=60, draws=500, **FREE)
    radii = [0.1, 0.3]
    bounds = attack_smoothed(model, x, found, radii, steps=10, draws=400, **FREE)
    for radius in radii:
        robust = float((exact > radius).float().mean())
        assert found.accuracy(radius).value <= robust <= bounds[radius].value
        # Points just beyond the boundary have p close to ½, which 400 votes cannot decide.
        assert bounds[radius].value <= float((exact > radius - 0.06).float().mean())


def test_a_denoiser_in_front_certifies_an_untouched_network() -> None:
    """D of standard normal data is x/(1 + σ²); a threshold at 0 keeps its exact radius."""
    model, x, y, exact = linear(40)
    denoiser = taser.scores.DenoisingScore(lambda x, sigma: x / (1 + sigma**2), 0.25)
    found = certify(model, x, y, sigma=0.25, n=40, draws=500, denoiser=denoiser, **FREE)
    alone = certify(model, x, y, sigma=0.25, n=40, draws=500, **FREE)
    assert torch.equal(found.count, alone.count)  # the same sign of w·D(x) for the same noise
    assert bool((found.radius <= exact[found.index]).all())


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
        (r"100 draws .* too few for radius 2", {"draws": 100, "radius": 2.0}),
        (r"alpha should lie in \(0, ½\)", {"alpha": 0.7}),
        (r"y should be in 0…1", {"y": y + 5}),
        (r"only a deterministic classifier can be certified", {"model": Stochastic()}),
        (r"y should be \(8,\) class numbers", {"y": x[:, 0]}),
    ]  # fmt: skip
    for message, wrong in cases:
        given: dict[str, Any] = {"model": model, "x": x, "y": y, "sigma": 0.25, **FREE, **wrong}
        with pytest.raises(ValueError, match=message):
            certify(given.pop("model"), given.pop("x"), given.pop("y"), **given)
    with pytest.raises(TypeError, match="denoiser should be one such as"):
        certify(model, x, y, sigma=0.25, denoiser=lambda x: x, **FREE)
    other = taser.scores.DenoisingScore(lambda x, _: 2 * x - 3, 0.25)
    with pytest.raises(ValueError, match="more than the noise: it is of other data"):
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
    page = (tmp_path / "out" / "report.html").read_text()
    assert "At σ = 0.12, " in page
    assert "under attack" in (tmp_path / "out" / "table.md").read_text()
    assert not math.isnan(np.mean(numbers[0]["radius"]))
