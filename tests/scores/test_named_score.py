"""Scores by name, as a recipe and the command line take them."""

from pathlib import Path

import pytest
import torch

import taser
from taser.scores import Denoiser, DenoisingScore, named, pretrained, sigma_of
from taser.training._build import build_score
from taser.training._config import RegulariserConfig

OWN = '''
import torch
from taser.scores import from_edm

class Shrink(torch.nn.Module):
    """E[x | x + σε] of N(0.5, 0.2²)."""

    def __init__(self):
        super().__init__()
        self.variance = torch.nn.Parameter(torch.tensor(0.04))

    def forward(self, x, sigma):
        gain = self.variance / (self.variance + sigma.view(-1, 1, 1, 1) ** 2)
        return 0.5 + gain * (x - 0.5)

def score():
    return from_edm(Shrink(), 0.3, coordinates="[0,1]")

def function():
    return from_edm(lambda x, sigma: x, 0.3)

def wide():
    return from_edm(torch.nn.Bilinear(7, 1, 7), 0.3)

def wrong():
    return Shrink()

def asking(path):
    return score()
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def exact(x: torch.Tensor, sigma: float) -> torch.Tensor:
    return -(x - 0.5) / (0.04 + sigma**2)


def test_a_function_of_the_users_at_the_level_that_the_recipe_names(own: Path) -> None:
    digits = taser.data.load("digits")
    x = digits.test.x[:8]
    for level, sigma in (({"timestep": 200}, sigma_of(200)), ({"sigma": 0.1}, 0.1)):
        config = RegulariserConfig(name="taser", score=f"{own}:score", **level)
        score = build_score(config, digits)
        assert isinstance(score, DenoisingScore)
        torch.testing.assert_close(score(x), exact(x, sigma), rtol=1e-4, atol=1e-4)
        assert sum(p.numel() for p in score.parameters()) == 1  # `.to(device)` moves it


def test_files_and_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = taser.data.load("digits").test.x[:4]
    shipped = named("digits")
    torch.testing.assert_close(shipped.at()(x), pretrained("digits").at()(x))
    monkeypatch.chdir(tmp_path)
    other = Denoiser((1, 8, 8), width=4).eval()
    other.save("digits")  # a file of that name comes first
    torch.testing.assert_close(named(Path("digits")).at()(x), other.at()(x))
    Path("cifar10").mkdir()  # a folder of that name is of something else
    assert isinstance(named("cifar10"), Denoiser)


def test_a_diffusers_model_by_its_folder(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers", reason="the extra taser[diffusers]")
    torch.manual_seed(0)
    diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8,), layers_per_block=1,
        norm_num_groups=4, down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",),
    ).save_pretrained(tmp_path)  # fmt: skip
    diffusers.DDPMScheduler().save_pretrained(tmp_path)
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    score = named(f"diffusers:{tmp_path}").at(timestep=100)
    direct = taser.scores.from_diffusers(str(tmp_path), timestep=100)
    torch.testing.assert_close(score(x), direct(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"is a folder; for a diffusers model write 'diffusers:"):
        named(tmp_path)


def test_wrong_names_are_reported(own: Path) -> None:
    with pytest.raises(ValueError, match=r"should return a score with a noise level.* got Shrink"):
        named(f"{own}:wrong")
    with pytest.raises(ValueError, match=r"cannot be called with no options: .*path"):
        named(f"{own}:asking")
    with pytest.raises(ValueError, match="which function in the file"):
        named(own)
    with pytest.raises(FileNotFoundError, match=r"no score at nowhere.*digits, mnist"):
        named("nowhere")
    with pytest.raises(ValueError, match="did you mean 'score'"):
        named(f"{own}:scores")


def test_a_score_of_other_inputs_is_refused_before_training(own: Path) -> None:
    config = RegulariserConfig(name="taser", score=f"{own}:wide")
    with pytest.raises(ValueError, match=r"not take the inputs of digits, of shape \(1, 8, 8\)"):
        build_score(config, taser.data.load("digits"))
