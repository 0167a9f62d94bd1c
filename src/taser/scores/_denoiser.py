"""The denoiser: networks, EDM's preconditioning, file format and sampling."""

import json
from collections.abc import Sequence
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from taser._files import write_atomically
from taser._runtime import rows_like

from ._score import DenoisingScore, noise_level


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


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(gcd(8, channels), channels)  # at most eight groups that divide them


def _zeroed(layer: nn.Module) -> nn.Module:
    """Set a layer's parameters to zero, so that its branch adds nothing at the start."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with a scale and shift by the noise level between, and a shortcut."""

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


class UNet(nn.Module):
    """A convolutional U-Net for images of `channels`, conditioned on the noise level.

    width: channels at full resolution; multipliers: of width, for each resolution (halved each
    time); blocks: for each resolution. Published: width 128, multipliers (1, 2, 2, 2), blocks 2 to
    4. patch 2 folds 2×2 pixels into channels first, for speed.
    """

    def __init__(
        self, channels: int = 3, width: int = 32, multipliers: Sequence[int] = (1, 2, 2),
        blocks: int = 1, patch: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        embedding = 4 * width
        self.divisor = patch * 2 ** (len(multipliers) - 1)
        self.embed = NoiseEmbedding(embedding)
        folded = channels * patch**2
        self.stem = nn.Sequential(nn.PixelUnshuffle(patch), nn.Conv2d(folded, width, 3, padding=1))
        widths = [width * m for m in multipliers]
        kept, current = [width], width
        self.down = nn.ModuleList()
        for depth, w in enumerate(widths):
            if depth:
                self.down.append(nn.AvgPool2d(2))
                kept.append(current)
            for _ in range(blocks):
                self.down.append(ResidualBlock(current, w, embedding))
                kept.append(current := w)
        self.middle = nn.ModuleList([ResidualBlock(current, current, embedding)])
        self.up = nn.ModuleList()
        for depth, w in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                self.up.append(ResidualBlock(current + kept.pop(), w, embedding))
                current = w
            if depth:
                self.up.append(nn.Upsample(scale_factor=2, mode="nearest"))
        self.head = nn.Sequential(
            _norm(current), nn.SiLU(), _zeroed(nn.Conv2d(current, folded, 3, padding=1)),
            nn.PixelShuffle(patch),
        )  # fmt: skip

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """(B, channels, H, W) and the noise level, (B,) → (B, channels, H, W)."""
        if any(side % self.divisor for side in x.shape[2:]):
            sides = f"divisible by {self.divisor}; got {tuple(x.shape[2:])}"
            raise ValueError(f"sides should be {sides}: use fewer multipliers or a smaller patch")
        embedding = self.embed(level)
        kept = [h := self.stem(x)]
        for layer in self.down:
            h = layer(h, embedding) if isinstance(layer, ResidualBlock) else layer(h)
            kept.append(h)
        h = self.middle[0](h, embedding)
        for layer in self.up:
            block = isinstance(layer, ResidualBlock)
            h = layer(torch.cat([h, kept.pop()], 1), embedding) if block else layer(h)
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
        embedding, h = self.embed(level), self.stem(x)
        for block in self.blocks:
            h = h + block(h + embedding)
        return self.head(h)


KIND = "taser.denoiser"


class Denoiser(nn.Module):
    """D(x; σ) ≈ E[x₀ | x₀ + σε = x], by the preconditioning of Karras et al. (2022):

        D(x; σ) = m + c_skip·(x − m) + c_out·F(c_in·(x − m), ln(σ)/4),

    c_skip = d²/(σ²+d²), c_out = σd/√(σ²+d²), c_in = 1/√(σ²+d²), with d the standard deviation of
    the data and m its mean. F is a :class:`UNet` for event shapes (C, H, W), a :class:`VectorNet`
    for (d,). σ is in the units of the inputs, pixels in [0, 1] for images.

    event_shape: shape of one input; mean, std: the data's; other options go to the network.
    """

    def __init__(
        self, event_shape: Sequence[int], *, mean: float = 0.5, std: float = 0.25, **network: Any
    ) -> None:
        super().__init__()
        if len(event_shape) not in (1, 3):
            raise ValueError(f"event_shape should be (C, H, W) or (d,); got {tuple(event_shape)}")
        if not std > 0:
            raise ValueError(f"std, the data's standard deviation, should be positive; got {std}")
        self.event_shape = tuple(event_shape)
        self.mean, self.std = float(mean), float(std)
        self.options = dict(network)
        kind = UNet if len(event_shape) == 3 else VectorNet
        self.network: nn.Module = kind(event_shape[0], **network)

    @classmethod
    def for_data(cls, x: Tensor, **network: Any) -> "Denoiser":
        """An untrained denoiser for inputs like x: (N, *event)."""
        return cls(tuple(x.shape[1:]), mean=float(x.mean()), std=float(x.std()), **network)

    def forward(self, x: Tensor, sigma: Tensor | float | None = None) -> Tensor:
        """D(x; σ): (B, *event), σ a number or (B,) → (B, *event)."""
        if tuple(x.shape[1:]) != self.event_shape:
            here, given = self.event_shape, tuple(x.shape[1:])
            raise ValueError(f"this denoiser is for inputs of shape {here}; got {given}")
        if sigma is None:
            raise ValueError("denoiser(x, sigma) takes σ; its score is denoiser.at(timestep=50)(x)")
        noise = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).expand(len(x))
        wide, centred = rows_like(noise, x), x - self.mean
        total = (wide.square() + self.std**2).sqrt()
        correction = self.network(centred / total, noise.log() / 4).to(x.dtype)
        skip = (self.std / total).square() * centred
        return self.mean + skip + (wide * self.std / total) * correction

    def at(self, *, timestep: int | None = None, sigma: float | None = None) -> DenoisingScore:
        """The score at a noise level: a timestep of DDPM's schedule (50 by default) or σ."""
        return DenoisingScore(self, noise_level(timestep, sigma))

    def save(self, path: str | Path, *, half: bool = False) -> Path:
        """One safetensors file with the architecture in its header; `half` for a smaller one."""
        state = {k: (t.half() if half else t).contiguous() for k, t in self.state_dict().items()}
        config = {"event_shape": self.event_shape, "mean": self.mean, "std": self.std,
                  "network": self.options}  # fmt: skip
        header = {"kind": KIND, "config": json.dumps(config)}
        return write_atomically(Path(path), save(state, header))

    @classmethod
    def load(cls, path: str | Path) -> "Denoiser":
        """Read what :meth:`save` wrote, in eval mode and float32."""
        try:
            with safe_open(str(path), framework="pt") as file:
                header = file.metadata() or {}
                state = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path} is not a safetensors file, or is damaged: {error}") from None
        if header.get("kind") != KIND:
            raise ValueError(f"{path} holds no taser denoiser: use from_diffusers or from_edm?")
        try:
            config = json.loads(header["config"])
            denoiser = cls(config.pop("event_shape"), **config.pop("network"), **config)
            denoiser.load_state_dict(state)
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            message = f"{path} does not hold the denoiser that its header describes: {error}"
            raise ValueError(message) from error
        return denoiser.eval()

    def __repr__(self) -> str:
        """Without the layers, which are in `.network`."""
        size = sum(p.numel() for p in self.parameters()) / 1e6
        return f"Denoiser(event_shape={self.event_shape}, {size:.2f} M parameters)"


@torch.no_grad()
def sample(
    denoiser: Denoiser, n: int, *, steps: int = 24, generator: torch.Generator | None = None
) -> Tensor:
    """n samples by Heun's method along dx/dσ = (x − D(x; σ))/σ (Karras et al., Algorithm 1).

    Noise levels fall from 10 to 0.005 along their ρ = 7 schedule, then to zero.
    """
    levels = torch.linspace(10.0 ** (1 / 7), 0.005 ** (1 / 7), steps, dtype=torch.float64) ** 7
    sigmas = [*levels.tolist(), 0.0]
    # Drawn on the CPU, so that every device sees the same noise.
    noise = torch.randn(n, *denoiser.event_shape, generator=generator)
    x = denoiser.mean + sigmas[0] * noise.to(next(denoiser.parameters()))
    for here, there in pairwise(sigmas):
        slope = (x - denoiser(x, here)) / here
        step = x + (there - here) * slope
        if there > 0:
            ahead = (step - denoiser(step, there)) / there
            step = x + (there - here) * (slope + ahead) / 2
        x = step
    return x
