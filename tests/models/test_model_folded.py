"""BatchNorm folded away: the same function, or nothing."""

import pytest
import torch
from torch import nn

from taser.models._copies import fold_batchnorm


@pytest.mark.parametrize("affine", [True, False])
def test_it_is_the_same_function(affine: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, affine=affine))
    x = torch.rand(4, 2, 5, 5)
    model(x)  # statistics
    quick = fold_batchnorm(model)
    assert quick is not None
    assert model.training
    torch.testing.assert_close(quick(x), model.eval()(x))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(3)),  # of (B, 3, 4): not the outputs' own
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)),
        nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)),
    ],
)
def test_what_cannot_be_folded_is_left(model: nn.Module) -> None:
    assert fold_batchnorm(model) is None
    assert all(module.training for module in model.modules())
