"""A noise-conditional denoiser with EDM's preconditioning, and its file."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taser.shapes import rows_like

from .denoising import DenoisingScore
from .networks import UNet, VectorNet
from .noise import level

KIND = "taser.denoiser"


class Denoiser(nn.Module):
    """D(x; σ) ≈ E[x₀ | x₀ + σε = x], by the preconditioning of Karras et al. (2022):

        D(x; σ) = m + c_skip·(x − m) + c_out·F(c_in·(x − m), ln(σ)/4),

    c_skip = d²/(σ²+d²), c_out = σd/√(σ²+d²), c_in = 1/√(σ²+d²), with d the standard deviation of
    the data and m its mean. F is a :class:`UNet` for event shapes (C, H, W), a :class:`VectorNet`
    for (d,). σ is in the units of the inputs, pixels in [0, 1] for images.

    event_shape: of one input; mean, std: of the data; the other options go to the network.
    """

    def __init__(
        self, event_shape: tuple[int, ...], *, mean: float = 0.5, std: float = 0.25, **network: Any
    ) -> None:
        super().__init__()
        if len(event_shape) not in (1, 3):
            raise ValueError(f"event_shape should be (C, H, W) or (d,); got {tuple(event_shape)}")
        if not std > 0:
            raise ValueError(f"std, the data's standard deviation, should be positive; got {std}")
        self.event_shape = tuple(event_shape)
        self.mean, self.std = float(mean), float(std)
        self.options = dict(network)
        images = len(event_shape) == 3
        self.network: nn.Module = (
            UNet(event_shape[0], **network) if images else VectorNet(event_shape[0], **network)
        )

    @classmethod
    def for_data(cls, x: Tensor, **network: Any) -> "Denoiser":
        """A denoiser, not yet trained, for inputs like x: (N, *event)."""
        return cls(tuple(x.shape[1:]), mean=float(x.mean()), std=float(x.std()), **network)

    def forward(self, x: Tensor, sigma: Tensor | float | None = None) -> Tensor:
        """D(x; σ): (B, *event), σ a number or (B,) → (B, *event)."""
        if tuple(x.shape[1:]) != self.event_shape:
            raise ValueError(
                f"this denoiser is for inputs of shape {self.event_shape}; got {tuple(x.shape[1:])}"
            )
        if sigma is None:
            raise ValueError(
                "a denoiser is asked at a noise level: denoiser(x, sigma); its score is "
                "denoiser.at(timestep=50)(x)"
            )
        noise = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).expand(len(x))
        wide = rows_like(noise, x)
        total = (wide.square() + self.std**2).sqrt()
        inside = (x - self.mean) / total
        correction = self.network(inside, noise.log() / 4).to(x.dtype)
        skip = (self.std / total).square() * (x - self.mean)
        return self.mean + skip + (wide * self.std / total) * correction

    def at(self, *, timestep: int | None = None, sigma: float | None = None) -> DenoisingScore:
        """The score at a noise level: a timestep of DDPM's schedule (50 by default) or σ."""
        return DenoisingScore(self, level(timestep, sigma))

    def save(self, path: str | Path, *, half: bool = False) -> Path:
        """One safetensors file with the architecture in its header; `half` for a smaller one."""
        from safetensors.torch import save

        from taser.files import write_atomically

        state = {
            name: (t.half() if half and t.is_floating_point() else t).contiguous()
            for name, t in self.state_dict().items()
        }
        described = {
            "event_shape": self.event_shape, "mean": self.mean, "std": self.std,
            "network": self.options,
        }  # fmt: skip
        header = {"kind": KIND, "config": json.dumps(described)}
        return write_atomically(Path(path), save(state, header))

    @classmethod
    def load(cls, path: str | Path) -> "Denoiser":
        """Read what :meth:`save` wrote, in evaluation mode; float32 whatever was stored."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt") as file:
                header = file.metadata() or {}
                state = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(
                f"{path} is not a safetensors file, or a damaged one: {error}"
            ) from None
        if header.get("kind") != KIND:
            raise ValueError(
                f"{path} holds no taser denoiser; for a diffusers or EDM model use "
                "taser.scores.from_diffusers or taser.scores.from_edm"
            )
        config = json.loads(header["config"])
        denoiser = cls(
            tuple(config["event_shape"]), mean=config["mean"], std=config["std"],
            **config["network"],
        )  # fmt: skip
        denoiser.load_state_dict(state)
        return denoiser.eval()

    def __repr__(self) -> str:
        """One line; the layers are in `.network`."""
        return f"Denoiser({self.extra_repr()})"

    def extra_repr(self) -> str:
        size = sum(p.numel() for p in self.parameters()) / 1e6
        return f"event_shape={self.event_shape}, {size:.2f} M parameters"
