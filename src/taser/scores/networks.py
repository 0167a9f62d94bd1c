"""The networks inside a denoiser: a small U-Net for images and an MLP for vectors."""

from collections.abc import Sequence
from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NoiseEmbedding(nn.Module):
    """Sines and cosines of a number, then two layers: (B,) → (B, width)."""

    frequencies: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.logspace(-1, 1.5, 16))
        self.layers = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, level: Tensor) -> Tensor:
        angles = level[:, None] * self.frequencies
        return self.layers(torch.cat([angles.sin(), angles.cos()], 1))


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions, the noise level scaling and shifting between them, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, embedding: int) -> None:
        super().__init__()
        self.norm1 = _norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.modulate = nn.Linear(embedding, 2 * outputs)
        self.norm2 = _norm(outputs)
        self.conv2 = _zeroed(nn.Conv2d(outputs, outputs, 3, padding=1))
        same = inputs == outputs
        self.shortcut: nn.Module = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """(B, inputs, H, W) and the embedded level, (B, embedding) → (B, outputs, H, W)."""
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.modulate(level)[:, :, None, None].chunk(2, 1)
        h = self.conv2(F.silu(self.norm2(h) * (1 + scale) + shift))
        return h + self.shortcut(x)


class SelfAttention(nn.Module):
    """Every pixel looks at every other one; for the coarsest level only."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = _zeroed(nn.Conv2d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) → the same."""
        q, k, v = self.qkv(self.norm(x)).flatten(2).mT.chunk(3, 2)
        mixed = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.out(mixed.mT.reshape(x.shape))


class UNet(nn.Module):
    """A convolutional U-Net for images of `channels`, conditioned on the noise level.

    width: channels at full resolution; multipliers: one for each resolution, halved between;
    blocks: residual blocks at each; attention: at the coarsest resolution. The published sizes are
    width 128, multipliers (1, 2, 2, 2), blocks 2 to 4. Images of any size divisible by
    patch · 2^(len(multipliers) − 1); patch 2 folds 2×2 pixels into channels first, for speed.
    """

    def __init__(
        self,
        channels: int = 3,
        width: int = 32,
        multipliers: Sequence[int] = (1, 2, 2),
        blocks: int = 1,
        attention: bool = False,
        patch: int = 1,
    ) -> None:
        super().__init__()
        embedding = 4 * width
        self.divisor = patch * 2 ** (len(multipliers) - 1)
        self.embed = NoiseEmbedding(embedding)
        folded = channels * patch**2
        self.stem = nn.Sequential(nn.PixelUnshuffle(patch), nn.Conv2d(folded, width, 3, padding=1))
        widths = [width * m for m in multipliers]
        kept, current = [width], width
        self.down = nn.ModuleList()
        for level, w in enumerate(widths):
            if level:
                self.down.append(nn.AvgPool2d(2))
                kept.append(current)
            for _ in range(blocks):
                self.down.append(ResidualBlock(current, w, embedding))
                current = w
                kept.append(w)
        self.middle = nn.ModuleList([ResidualBlock(current, current, embedding)])
        if attention:
            self.middle.append(SelfAttention(current))
        self.up = nn.ModuleList()
        for level, w in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                self.up.append(ResidualBlock(current + kept.pop(), w, embedding))
                current = w
            if level:
                self.up.append(nn.Upsample(scale_factor=2, mode="nearest"))
        self.head = nn.Sequential(
            _norm(current), nn.SiLU(), _zeroed(nn.Conv2d(current, folded, 3, padding=1)),
            nn.PixelShuffle(patch),
        )  # fmt: skip

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """(B, channels, H, W) and the noise level, (B,) → (B, channels, H, W)."""
        if any(side % self.divisor for side in x.shape[2:]):
            raise ValueError(
                f"this network halves images so often that their sides have to be divisible by "
                f"{self.divisor}; got {tuple(x.shape[2:])}: take fewer levels or a smaller patch"
            )
        embedding = self.embed(level)
        h = self.stem(x)
        kept = [h]
        for layer in self.down:
            h = _apply(layer, h, embedding)
            kept.append(h)
        for layer in self.middle:
            h = _apply(layer, h, embedding)
        for layer in self.up:
            if isinstance(layer, ResidualBlock):
                h = torch.cat([h, kept.pop()], 1)
            h = _apply(layer, h, embedding)
        return self.head(h)


class VectorNet(nn.Module):
    """Residual layers for vectors of length `dim`, the noise level added to each."""

    def __init__(self, dim: int, width: int = 256, blocks: int = 3) -> None:
        super().__init__()
        self.embed = NoiseEmbedding(width)
        self.stem = nn.Linear(dim, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(width), nn.Linear(width, width), nn.SiLU(),
                          nn.Linear(width, width))
            for _ in range(blocks)
        )  # fmt: skip
        self.head = nn.Sequential(nn.RMSNorm(width), _zeroed(nn.Linear(width, dim)))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """(B, dim) and the noise level, (B,) → (B, dim)."""
        embedding = self.embed(level)
        h = self.stem(x)
        for block in self.blocks:
            h = h + block(h + embedding)
        return self.head(h)


def _apply(layer: nn.Module, h: Tensor, embedding: Tensor) -> Tensor:
    return layer(h, embedding) if isinstance(layer, ResidualBlock) else layer(h)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(gcd(8, channels), channels)  # eight groups, or fewer that divide them


def _zeroed(layer: nn.Module) -> nn.Module:
    """A layer that starts at zero, so that the network starts as the best guess without it."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer
