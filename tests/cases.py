"""Networks and data that many tests share, in float64 for comparison with finite differences."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taser.data import Dataset, Split

BATCH = 4


@dataclass(frozen=True)
class Case:
    """A network in evaluation mode, with inputs, labels and a score to go with it."""

    model: nn.Module
    x: Tensor
    y: Tensor
    s: Tensor


class Attention(nn.Module):
    """One self-attention layer between two linear maps, with or without LayerNorm."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.norm = nn.LayerNorm(8) if norm else nn.Identity()
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.embed(x))
        q, k, v = (
            part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(h).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head((h + mixed).mean(1))


def _cnn(norm: nn.Module, activation: Callable[[], nn.Module] = nn.SiLU) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), norm, activation(),
        nn.Conv2d(4, 4, 3, padding=1), activation(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def _trained(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """A BatchNorm with statistics as if it had seen data."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return norm


def _mlp(middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), middle, nn.Tanh(), nn.Linear(8, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: _mlp(nn.SiLU()), (6,)),
    "batchnorm": (lambda: _cnn(_trained(nn.BatchNorm2d(4))), (2, 5, 5)),
    "groupnorm": (lambda: _cnn(nn.GroupNorm(2, 4)), (2, 5, 5)),
    "instancenorm": (lambda: _cnn(nn.InstanceNorm2d(4, affine=True)), (2, 5, 5)),
    "layernorm": (lambda: _mlp(nn.LayerNorm(8)), (6,)),
    "rmsnorm": (lambda: _mlp(nn.RMSNorm(8)), (6,)),
    "attention": (lambda: Attention(norm=False), (5, 3)),
    "transformer": (lambda: Attention(norm=True), (5, 3)),
    "relu": (lambda: _cnn(_trained(nn.BatchNorm2d(4)), nn.ReLU), (2, 5, 5)),
}


def case(name: str) -> Case:
    """The network `name` with random weights, inputs, labels and score, always the same."""
    build, shape = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().double().eval()
        x = torch.randn(BATCH, *shape, dtype=torch.float64)
        s = torch.randn_like(x)
        y = torch.tensor([0, 1, 2, 1])
    return Case(model, x, y, s)


def images(size: int) -> Dataset:
    """Random pixels in the shape of CIFAR-10."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (size, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = Split(pixels, torch.randint(10, (size,), generator=generator))
    return Dataset("cifar10", split, split, split, tuple("0123456789"))
