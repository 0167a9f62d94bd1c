"""Which way sensitivity points, and linearised networks, against closed forms and a search."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from diagnostics import DRAWS, linearised_correct, sensitivity
from taser.attacks import PGD, Threat, margin
from taser.scores import DenoisingScore

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
    """Across the line ε̂ = ε; along it ε̂ = σ²ε/(spread² + σ²), whatever x is."""
    x, y = data()
    found = sensitivity(linear(slope), x, y, Threat(), DenoisingScore(flat, SIGMA))
    along, across = (s**2 for s in slope)
    kept = SIGMA**2 / (SPREAD**2 + SIGMA**2)
    wanted = (along * kept**2 + across) / (along + across)
    assert found.gradient == pytest.approx(math.sqrt(along + across))
    # (ε̂·g)² is at most as noisy as a chi-squared number of one degree: √2 of its mean.
    assert found.off_data == pytest.approx(wanted, rel=4 * math.sqrt(2 / (N * DRAWS)))


def test_the_share_does_not_depend_on_the_size_of_the_logits() -> None:
    score = DenoisingScore(flat, SIGMA)
    shares = [
        sensitivity(linear((c, 2 * c)), *data(), Threat(), score).off_data for c in (1.0, 50.0)
    ]
    assert shares[0] == pytest.approx(shares[1], rel=1e-5)


def towards(k: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda z, y: z[:, k] - z.gather(1, y[:, None])[:, 0]


@pytest.mark.parametrize(
    "threat",
    [Threat("linf", 0.1), Threat("linf", 0.1, None, None), Threat("l2", 0.2, None, None)],
)
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_a_linear_network_is_its_own_linearisation(threat: Threat, scale: float) -> None:
    """Of ten classes. PGD with many steps finds what can be found of a linear margin."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(6, 10)
    with torch.no_grad():
        model.weight.copy_(scale * torch.randn(10, 6, generator=generator))
        model.bias.zero_()
    x = torch.rand(200, 6, generator=generator)
    y = model(x).argmax(1)
    y[:10] = (y[:10] + 1) % 10  # which it gets wrong
    correct = linearised_correct(model, x, y, threat)
    assert not correct[:10].any()
    assert 0.1 < correct.float().mean() < 0.9
    broken = torch.zeros(200, dtype=torch.bool)
    for k in range(10):  # aimed at each class, because the margin's maximum has kinks
        moved = PGD(threat, 40, threat.epsilon / 4, "clean")(model, x, y, loss=towards(k))
        broken |= margin(model(moved), y) >= -1e-5 * scale
    assert torch.equal(correct, ~broken)


def test_a_constant_network_has_no_sensitivity() -> None:
    found = sensitivity(linear((0.0, 0.0), -1.0), *data(), Threat(), DenoisingScore(flat, SIGMA))
    assert (found.gradient, found.off_data, found.linear) == (0.0, 0.0, 1.0)
    assert sensitivity(linear((1.0, 0.0)), *data(), Threat(), None).off_data is None
