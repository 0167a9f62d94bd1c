"""Networks whose weight gradients would write outside their memory keep their channels first."""

import pytest
import torch
from torch import nn

from cases import images
from taser.models import ResNet18
from taser.models._copies import supports_channels_last
from taser.training import read_recipe
from taser.training._build import set_up


@pytest.mark.parametrize(
    ("layer", "bears"),
    [
        (nn.Conv2d(7, 16, 1, 2), False), (nn.Conv2d(8, 16, 1, 2), True),
        (nn.Conv2d(4, 16, 1), True), (nn.Conv2d(4, 16, 3, 2), True), (nn.Linear(4, 4), True),
    ],
)  # fmt: skip
def test_which_layers(layer: nn.Module, bears: bool) -> None:
    assert supports_channels_last(nn.Sequential(layer), "cpu") is bears
    assert supports_channels_last(layer, "cuda")


@pytest.mark.parametrize(("width", "layout"), [(4, "contiguous"), (8, "last")])
def test_training_chooses(width: int, layout: str) -> None:
    setup = set_up(read_recipe("cifar10/standard", [f"model.width={width}"]), images(8))
    assert isinstance(setup.learner.module, ResNet18)
    expected = torch.channels_last if layout == "last" else torch.contiguous_format
    assert setup.layout == expected
    assert setup.learner.module.stem[0].weight.is_contiguous(memory_format=expected)
