"""A run with cached scores takes the steps of one that computes them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import small
from torch import Tensor

from taser.regularisers import Taser
from taser.scores import pretrained, write_cache
from taser.training import Config
from taser.training._build import Setup, build_data, set_up
from taser.training._estimate_cost import estimate


def clean(**regulariser: Any) -> dict[str, Any]:
    return {"name": "taser", "form": "paper", "operator": "first_order", **regulariser}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train, denoiser = build_data(small().data).train, pretrained("digits")
    score = denoiser.at(timestep=50)
    write_cache(tmp_path, score, train.x, data=train.hash)
    return tmp_path


def penalty_of_first_step(setup: Setup) -> float:
    batch = next(iter(setup.batches))
    generator = torch.Generator().manual_seed(0)
    numbers = setup.learner.step(batch.x, batch.y, batch.s, generator, weight=1.0, perturb=False)
    return float(numbers["penalty"])


def without_network(config: Config) -> Setup:
    """A run whose score model fails when it is called."""

    def fails(_x: Tensor) -> Tensor:
        raise AssertionError("the score was called")

    setup = set_up(config)
    assert isinstance(setup.learner.regulariser, Taser)
    setup.learner.regulariser.score.forward = fails  # type: ignore[union-attr]
    return setup


def test_the_same_penalty_without_the_network(folder: Path) -> None:
    computed = penalty_of_first_step(set_up(small(regulariser=clean())))
    config = small(regulariser=clean(cache=str(folder)))
    assert penalty_of_first_step(without_network(config)) == pytest.approx(computed, rel=1e-3)
    estimate(without_network(config))
    with pytest.raises(AssertionError, match="was called"):
        penalty_of_first_step(without_network(small(regulariser=clean())))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"regulariser": clean(form="noised")}, "form=paper"),
        ({"regulariser": clean(form="steepest")}, "form=paper"),
        ({"regulariser": clean(score="gaussian")}, "a denoiser's score"),
        ({"regulariser": clean(name="gradient-norm")}, "name=taser"),
        ({"data": {"augment": "crop"}}, "data.augment=none"),
        ({"data": {"examples": 96}}, "was made for data = .*every example"),
        ({"data": {"validation": 0.2}}, "was made for data = .*as data.validation"),
        ({"regulariser": clean(timestep=25)}, "was made for sigma = "),
    ],
)
def test_a_cache_of_something_else_is_refused(
    folder: Path, sections: dict[str, Any], message: str
) -> None:
    regulariser = {**sections.get("regulariser", clean()), "cache": str(folder)}
    with pytest.raises(ValueError, match=message):
        set_up(small(**{**sections, "regulariser": regulariser}))
