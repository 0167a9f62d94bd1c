"""Models to attack: small, quick to train, and always the same."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taser.data import load


def digits(n: int = 100) -> tuple[Tensor, Tensor]:
    """Test images (n, 1, 8, 8) in [0, 1], and their labels."""
    test = load("digits").test
    return test.x[:n], test.y[:n]


@functools.cache
def undefended(norm: bool = False) -> nn.Module:
    """A convolutional network for digits, trained as usual, with or without BatchNorm.

    The same object each time: tests may call it but not change it.
    """
    train = load("digits").train
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8) if norm else nn.Identity(), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip
        optimiser = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(60):
            optimiser.zero_grad()
            F.cross_entropy(model(train.x), train.y).backward()
            optimiser.step()
    optimiser.zero_grad()
    return model.eval()


def linear(classes: int = 2, features: int = 6) -> nn.Module:
    """Logits W x + b, where the best attack has a closed form."""
    model = nn.Linear(features, classes)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        model.weight.copy_(torch.randn(model.weight.shape, generator=generator))
        model.bias.copy_(torch.randn(model.bias.shape, generator=generator))
    return model.eval()


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of correct answers."""
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def seeded(seed: int = 0) -> torch.Generator:
    """A generator of one's own."""
    return torch.Generator().manual_seed(seed)
