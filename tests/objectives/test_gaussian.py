"""Gaussian augmentation, against the definition of Cohen, Rosenfeld and Kolter (2019)."""

import pytest
import torch
import torch.nn.functional as F

import cases
from taser.objectives import Gaussian
from taser.training import read_recipe, set_up


def test_the_loss_is_the_cross_entropy_at_noised_points() -> None:
    case = cases.case("mlp")
    z = torch.randn(case.x.shape, generator=torch.Generator().manual_seed(0), dtype=case.x.dtype)
    found = Gaussian(0.5)(case.model, case.x, case.y, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found, F.cross_entropy(case.model(case.x + 0.5 * z), case.y))


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_sigma_is_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match="sigma should be a positive number"):
        Gaussian(sigma)


@pytest.mark.parametrize("data", ["digits", "fashion-mnist", "cifar10"])
def test_recipes_train_and_penalise_at_the_same_noise(data: str) -> None:
    config = read_recipe(f"{data}/gaussian", ["regulariser.name=taser", "objective.sigma=0.25"])
    assert config.regulariser.sigma == config.objective.sigma
    assert config.regulariser.form == "noised"


def test_the_recipe_sets_sigma() -> None:
    objective = set_up(read_recipe("digits/gaussian", ["objective.sigma=0.5"])).learner.objective
    assert isinstance(objective, Gaussian)
    assert objective.sigma == 0.5
