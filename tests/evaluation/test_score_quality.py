"""Score quality in closed form: a perfect score, a spoiled one, an equivariant one."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from taser.data import load
from taser.evaluation._score_quality import random_functions, score_quality
from taser.report import _score_report as report
from taser.scores import Denoiser, Gaussian, pretrained
from taser.stein.identities import stein_identity


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_best_linear_error_is_that_of_the_posterior_mean() -> None:
    """tr C(C + σ²I)⁻¹/d of N(1, C), as a share of σ², to 4.5 standard errors of 20,000 draws."""
    cov = torch.tensor([[1.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
    p = Gaussian(torch.ones(2).double(), cov)
    train, held_out = p.sample(200_000, generator()), p.sample(20_000, generator(1))
    quality = score_quality(Denoiser((2,)).double(), train, held_out, timesteps=(500,), functions=1)
    (level,) = quality.levels
    gain = cov @ torch.linalg.inv(cov + level.sigma**2 * torch.eye(2))
    assert level.linear == pytest.approx(float(gain.trace()) / 2, rel=4.5 * (2 / 40_000) ** 0.5)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    data = load("digits")
    return data.train.x, data.test.x


def test_the_shipped_score_is_good_and_a_spoiled_one_is_not(
    digits: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    good = pretrained("digits")
    quality = score_quality(good, *digits, timesteps=(25, 50, 100))
    assert all(level.gain > 0.25 for level in quality.levels)
    assert all(abs(level.stein.z) < 4.5 for level in quality.levels)
    assert quality.ksd_p_value > 0.001

    spoiled = Denoiser.load(good.save(tmp_path / "copy.safetensors"))
    spoiled.std *= 2  # as if fitted to other data: every estimate keeps too much of the noise
    bad = score_quality(spoiled, *digits, timesteps=(50,))
    assert bad.levels[0].gain < quality.levels[1].gain - 0.1
    assert abs(bad.levels[0].stein.z) > 8
    assert bad.ksd_p_value < 0.01
    page = report.write(quality, "digits", tmp_path, samples=digits[1][:4])
    assert "http" not in page.read_text().replace("http-equiv", "")


def test_a_score_of_the_wrong_size_is_noticed_where_the_law_is_symmetric() -> None:
    """Functions that are odd about the mean have E[s·∇f] = E[Δf] = 0 whatever the size of s."""
    x = torch.randn(4000, 4, generator=generator())
    for size, noticed in ((1.0, False), (1.5, True)):
        checks = [
            stein_identity(f, x, -size * x, generator=generator(1))
            for f in random_functions(x, 5, generator(2))
        ]
        assert (max(abs(check.z) for check in checks) > 4.5) == noticed


def test_at_least_two_examples(digits: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="at least two"):
        score_quality(pretrained("digits"), digits[0], digits[1][:1])
