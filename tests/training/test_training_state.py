"""Averaged weights, and optimisers whose state survives being written down."""

import copy

import pytest
import torch
from safetensors.torch import load as tensors_from
from torch import nn

from taser._checkpoint import optimiser_tensors, restore_optimiser, weights_as_bytes
from taser._runtime import VALIDATION, WEIGHTS, combine_seeds
from taser.models._copies import EMA
from taser.training._build import build_optimiser
from taser.training._config import OptimiserConfig


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Flatten(), nn.Linear(16, 3)
    )
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def steps(model: nn.Module, optimiser: torch.optim.Optimizer, which: range) -> None:
    for step in which:
        x = torch.randn(8, 2, 4, 4, generator=torch.Generator().manual_seed(step))
        optimiser.zero_grad()
        model(x.contiguous(memory_format=torch.channels_last)).square().mean().backward()
        optimiser.step()


@pytest.mark.parametrize(
    "config",
    [
        OptimiserConfig("adam"),
        OptimiserConfig("adamw", weight_decay=0.1),
        OptimiserConfig("sgd", rate=0.1),
        OptimiserConfig("sgd", rate=0.1, momentum=0.0),
    ],
    ids=["adam", "adamw", "sgd", "sgd without momentum"],
)
def test_a_restored_optimiser_takes_the_same_steps(config: OptimiserConfig) -> None:
    """Bit for bit, through a file, with images in the order of channels_last."""
    model = network()
    optimiser = build_optimiser(model, config)
    steps(model, optimiser, range(3))
    stopped = weights_as_bytes(optimiser_tensors(optimiser))
    weights = copy.deepcopy(model.state_dict())
    steps(model, optimiser, range(3, 8))

    resumed = network()
    resumed.load_state_dict(weights)
    other = build_optimiser(resumed, config)
    restore_optimiser(other, tensors_from(stopped))
    steps(resumed, other, range(3, 8))
    assert all(map(torch.equal, model.state_dict().values(), resumed.state_dict().values()))
    one, two = optimiser_tensors(optimiser), optimiser_tensors(other)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_optimiser_skips_frozen_parameters() -> None:
    model = network()
    model[0].requires_grad_(False)
    (group,) = build_optimiser(model, OptimiserConfig()).param_groups
    assert len(group["params"]) == 4
    with pytest.raises(ValueError, match="no parameters to train"):
        build_optimiser(model.requires_grad_(False), OptimiserConfig())


def test_optimiser_options() -> None:
    settings = OptimiserConfig("adam", rate=0.5, betas=(0.1, 0.2), weight_decay=0.3)
    (group,) = build_optimiser(network(), settings).param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.5, (0.1, 0.2), 0.3)
    settings = OptimiserConfig("sgd", momentum=0.8)
    (group,) = build_optimiser(network(), settings).param_groups
    assert (group["momentum"], group["nesterov"]) == (0.8, True)


def test_seeds_of_different_purposes_differ() -> None:
    """Padded with zeros, (1,), (1, 0) and (1, 0, 0, 0) would be one seed."""
    purposes = [(1,), (1, 0), (1, 0, 0), (1, 0, 0, 0), (1, 0, 0, 1), (0, 1), (1, WEIGHTS, 1)]
    assert len({combine_seeds(*numbers) for numbers in purposes}) == len(purposes)
    assert combine_seeds(1, WEIGHTS) != combine_seeds(1, VALIDATION)


def test_the_average_of_weights() -> None:
    """θ̄ ← d·θ̄ + (1 − d)·θ with d = min(0.9, (1 + t)/(10 + t)), in plain numbers."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    average, expected = EMA(model, 0.9), 1.0
    for step in range(200):
        nn.init.constant_(model.weight, float(step))
        average.update(model, step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        assert float(average.model.weight) == pytest.approx(expected, rel=1e-5)
    assert expected == pytest.approx(199 - 9, rel=0.01)  # it lags by d/(1 − d) steps


def test_the_average_has_the_model_s_statistics_and_no_gradients() -> None:
    model = network()
    average = EMA(model, 0.5)
    model(torch.randn(8, 2, 4, 4))
    average.update(model, 0)
    assert all(map(torch.equal, average.model.buffers(), model.buffers()))
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    assert not average.model.training
    assert model.training
