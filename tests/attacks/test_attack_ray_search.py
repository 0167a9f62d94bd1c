"""Ray search against a classifier whose distance to the boundary has a closed form."""

import pytest
import torch
from torch import Tensor

from taser.attacks import RaySearch, Threat
from taser.models import Wrapped

WEIGHT = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 0.25, -0.5, 2.0])


def linear(x: Tensor) -> Tensor:
    """Two classes, divided by w·x = 0: ℓ∞ distance |w·x|/‖w‖₁, along −sign(w)."""
    z = x.flatten(1) @ WEIGHT
    return torch.stack([z, -z], 1)


@pytest.fixture
def examples() -> tuple[Tensor, Tensor]:
    x = torch.randn(40, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    return x, linear(x).argmax(1)


def test_it_breaks_what_lies_within_reach_and_nothing_else(
    examples: tuple[Tensor, Tensor],
) -> None:
    x, y = examples
    distance = (x.flatten(1) @ WEIGHT).abs() / WEIGHT.abs().sum()
    epsilon = float(distance.median())
    threat = Threat("linf", epsilon, low=None, high=None)
    moved = RaySearch(threat, trials=100)(Wrapped(linear), x, y)
    broken = linear(moved).argmax(1) != y
    # A radius is accurate to a thousandth of the box.
    resolution = (float(x.max() - x.min()) + 2 * epsilon) / 1000
    assert bool(broken[distance < epsilon - resolution].all())
    assert not bool(broken[distance > epsilon].any())
    assert bool((threat.distance(moved, x) <= epsilon * (1 + 1e-6)).all())
    assert torch.equal(moved[~broken], x[~broken])


def test_it_stays_in_the_box(examples: tuple[Tensor, Tensor]) -> None:
    x = examples[0].sigmoid()
    y = linear(x).argmax(1)
    moved = RaySearch(Threat("linf", 0.5), trials=60)(Wrapped(linear), x, y)
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    assert bool((linear(moved).argmax(1) != y).any())


def test_it_needs_only_the_class(examples: tuple[Tensor, Tensor]) -> None:
    x, y = examples
    threat = Threat("linf", 0.5, low=None, high=None)

    def classes(x: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(linear(x).argmax(1), 2).float()

    seen, unseen = (RaySearch(threat, 50)(Wrapped(model), x, y) for model in (linear, classes))
    assert torch.equal(seen, unseen)


def test_in_l2_it_finds_shorter_ways_than_those_of_signs(examples: tuple[Tensor, Tensor]) -> None:
    """Along ±1 the distance is |w·x|√d/‖w‖₁; a way that leaves small weights alone is shorter."""
    x, y = examples
    heights = (x.flatten(1) @ WEIGHT).abs()
    by_signs, least = heights * 8**0.5 / WEIGHT.abs().sum(), heights / WEIGHT.norm()
    epsilon = float(by_signs.median())
    threat = Threat("l2", epsilon, low=None, high=None)
    moved = RaySearch(threat, trials=200)(Wrapped(linear), x, y)
    broken = linear(moved).argmax(1) != y
    assert bool(broken[by_signs < 0.99 * epsilon].all())
    assert bool(broken[by_signs > 1.02 * epsilon].any())
    assert not bool(broken[least > epsilon].any())
    assert bool((threat.distance(moved, x) <= epsilon * (1 + 1e-5)).all())
