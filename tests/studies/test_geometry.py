"""Which way sensitivity points, against closed forms."""

import math

import pytest
import torch
from torch import Tensor, nn

from taser.attacks import Threat
from taser.scores import DenoisingScore
from taser.studies.geometry import geometry

SIGMA, SPREAD, N = 0.1, 0.3, 400


def flat(x: Tensor, sigma: float) -> Tensor:
    """E[x₀ | x₀ + σε = x] for x₀ = (N(0, 0.3²), 0): data on a line."""
    kept = SPREAD**2 / (SPREAD**2 + sigma**2)
    return x * torch.tensor([kept, 0.0])


def linear(slope: tuple[float, float], bias: float = 0.0) -> nn.Module:
    """Two logits whose difference m = z_1 − z_0 is slope·x + bias."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0], slope]))
        model.bias.copy_(torch.tensor([0.0, bias]))
    return model


def data() -> tuple[Tensor, Tensor]:
    along = SPREAD * torch.randn(N, generator=torch.Generator().manual_seed(1))
    return torch.stack([along, torch.zeros(N)], 1), torch.zeros(N, dtype=torch.long)


@pytest.mark.parametrize("slope", [(2.0, 0.0), (0.0, 3.0), (1.0, 1.0)])
def test_the_share_off_the_data(slope: tuple[float, float]) -> None:
    """Across the line ε̂ = ε; along it ε̂ has the variance σ²/(spread² + σ²)."""
    found = geometry(linear(slope), *data(), Threat(), DenoisingScore(flat, SIGMA))
    along, across = (s**2 for s in slope)
    kept = SIGMA**2 / (SPREAD**2 + SIGMA**2)
    wanted = (along * kept + across) / (along + across)
    assert found.gradient == pytest.approx(math.sqrt(along + across))
    # (ε̂·g)² is chi-squared with one degree of freedom: its deviation is √2 times its mean. The
    # draws share their examples, which is what `along` has its noise from as well.
    assert found.off_data == pytest.approx(wanted, rel=4 * math.sqrt(2 / N))


@pytest.mark.parametrize(("norm", "dual"), [("linf", 7.0), ("l2", 5.0)])
def test_the_radius_of_a_linear_network_is_its_distance(norm: str, dual: float) -> None:
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    found = geometry(linear((3.0, -4.0), bias=-14.0), x, y, Threat(norm, 0.1), None)
    assert found.radius == pytest.approx(14 / dual)
    assert found.off_data is None
    wrong = geometry(linear((3.0, -4.0), bias=7.0), x, y, Threat(norm, 0.1), None)
    assert wrong.radius == pytest.approx(-7 / dual)


def test_a_constant_network_has_no_sensitivity() -> None:
    found = geometry(linear((0.0, 0.0), -1.0), *data(), Threat(), DenoisingScore(flat, SIGMA))
    assert (found.gradient, found.off_data) == (0.0, 0.0)
