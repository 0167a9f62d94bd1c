"""Scores without their geometry keep their size."""

from pathlib import Path

import pytest
import torch

import replaced_scores
from taser.scores import pretrained
from taser.training import read_recipe
from taser.training._build import build_data, build_score

FILE = Path(replaced_scores.__file__)
SHUFFLED, WHITE = replaced_scores.shuffled(), replaced_scores.white()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def noised(score: object, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return score.noised(x, torch.Generator().manual_seed(1))  # type: ignore[attr-defined]


def test_shuffled_is_the_score_of_another_image(x: torch.Tensor) -> None:
    own = pretrained("digits").at(timestep=50)
    points, s = noised(own, x)
    moved, other = noised(SHUFFLED, x)
    assert torch.equal(points, moved)
    assert torch.equal(other, s[[5, 0, 1, 2, 3, 4]])
    assert torch.equal(SHUFFLED(x), own(x).roll(1, 0))


def test_white_has_the_size_and_no_direction(x: torch.Tensor) -> None:
    own = pretrained("digits").at(timestep=50)
    _, s = noised(own, x)
    _, white = noised(WHITE, x)
    torch.testing.assert_close(white.flatten(1).norm(dim=1), s.flatten(1).norm(dim=1))
    cosine = torch.nn.functional.cosine_similarity(white.flatten(1), s.flatten(1))
    assert cosine.abs().max() < 0.5  # of random directions in 64 dimensions, std 1/8: four of them


def test_pairs_are_replaced_as_a_whole(x: torch.Tensor) -> None:
    own = pretrained("digits").at(timestep=50)
    s, white, shuffled = (
        score.paired(x, torch.Generator().manual_seed(1)) for score in (own, WHITE, SHUFFLED)
    )
    torch.testing.assert_close(white.flatten(1).norm(dim=1), s.flatten(1).norm(dim=1))
    assert torch.equal(shuffled, s.roll(1, 0))


def test_named_in_a_recipe(x: torch.Tensor) -> None:
    wanted = ["regulariser.timestep=100", "regulariser.precision=bfloat16"]
    for name in ("white", "shuffled"):
        config = read_recipe("digits/pgd", [f"regulariser.score={FILE}:{name}", *wanted])
        score = build_score(config.regulariser, build_data(config.data))
        assert type(score).__name__ == "Replaced"
        own = pretrained("digits").at(timestep=100)
        assert score.sigma == own.sigma  # type: ignore[attr-defined]
        own.precision = "bfloat16"
        torch.testing.assert_close(score(x).flatten(1).norm(dim=1).sort()[0],
                                   own(x).flatten(1).norm(dim=1).sort()[0])  # fmt: skip
        assert sum(p.numel() for p in score.parameters()) > 0  # type: ignore[attr-defined]
    assert replaced_scores.white_cifar10()(torch.rand(2, 3, 32, 32)).shape == (2, 3, 32, 32)


def test_along_a_direction(x: torch.Tensor) -> None:
    """Shuffled: another input's; white: the direction itself, as long as the score."""
    score = pretrained("digits").at(timestep=50)
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).sign()
    own = score.along(x, v)
    torch.testing.assert_close(own, (score(x + score.sigma * v) - score(x - score.sigma * v)) / 2)
    assert torch.equal(SHUFFLED.along(x, v), own.roll(1, 0))
    white = WHITE.along(x, v)
    torch.testing.assert_close(white.flatten(1).norm(dim=1), own.flatten(1).norm(dim=1))
    torch.testing.assert_close(-white / white.abs(), v)
    assert not WHITE.along(x, 0 * v).any()  # of a network without a gradient
