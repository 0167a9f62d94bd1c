"""Scores without their geometry keep their size."""

import pytest
import torch

from taser.scores import Replaced, pretrained
from taser.training import read_recipe
from taser.training._build import build_data, build_score


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def noised(score: object, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return score.noised(x, torch.Generator().manual_seed(1))  # type: ignore[attr-defined]


def test_shuffled_is_the_score_of_another_image(x: torch.Tensor) -> None:
    own = pretrained("digits").at(timestep=50)
    points, s = noised(own, x)
    moved, other = noised(Replaced(own, "shuffled"), x)
    assert torch.equal(points, moved)
    assert torch.equal(other, s[[5, 0, 1, 2, 3, 4]])
    assert torch.equal(Replaced(own, "shuffled")(x), own(x).roll(1, 0))


def test_white_has_the_size_and_no_direction(x: torch.Tensor) -> None:
    own = pretrained("digits").at(timestep=50)
    _, s = noised(own, x)
    _, white = noised(Replaced(own, "white"), x)
    torch.testing.assert_close(white.flatten(1).norm(dim=1), s.flatten(1).norm(dim=1))
    cosine = torch.nn.functional.cosine_similarity(white.flatten(1), s.flatten(1))
    assert cosine.abs().max() < 0.5  # of random directions in 64 dimensions, std 1/8: four of them


def test_pairs_are_replaced_as_a_whole(x: torch.Tensor) -> None:
    own = pretrained("digits").at(timestep=50)
    s, white, shuffled = (
        score.paired(x, torch.Generator().manual_seed(1))
        for score in (own, Replaced(own, "white"), Replaced(own, "shuffled"))
    )
    torch.testing.assert_close(white.flatten(1).norm(dim=1), s.flatten(1).norm(dim=1))
    assert torch.equal(shuffled, s.roll(1, 0))


def test_named_in_a_recipe() -> None:
    config = read_recipe("digits/pgd", ["regulariser.replaced=white"])
    score = build_score(config.regulariser, build_data(config.data))
    assert isinstance(score, Replaced)
    assert score.sigma == pytest.approx(0.088, abs=1e-3)
    with pytest.raises(ValueError, match="with_"):
        Replaced(pretrained("digits").at(timestep=50), "other")  # type: ignore[arg-type]


def test_along_a_direction(x: torch.Tensor) -> None:
    """Shuffled: another input's; white: the direction itself, as long as the score."""
    score = pretrained("digits").at(timestep=50)
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).sign()
    own = score.along(x, v)
    torch.testing.assert_close(own, (score(x + score.sigma * v) - score(x - score.sigma * v)) / 2)
    assert torch.equal(Replaced(score, "shuffled").along(x, v), own.roll(1, 0))
    white = Replaced(score, "white").along(x, v)
    torch.testing.assert_close(white.flatten(1).norm(dim=1), own.flatten(1).norm(dim=1))
    torch.testing.assert_close(-white / white.abs(), v)
