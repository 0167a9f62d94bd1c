"""Accuracy under common corruptions of images, after CIFAR-10-C (Hendrycks and Dietterich, 2019).

The levels of severity 1 … 5 are from CIFAR-10-C; where our form is simpler, the levels are about
as strong, and the docstring says so. Pixels are not rounded to bytes.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from taser._files import Progress
from taser._runtime import noise_like
from taser.attacks import Model

from ._record import device_of, predictions
from ._statistics import Interval, accuracy_interval

SEVERITIES = (1, 2, 3, 4, 5)
TOLERANCE = 1e-6  # outside [0, 1]: rounding
SMALL = 1e-12  # in place of zero in a denominator


@dataclass(frozen=True)
class Corruption:
    """A change that no adversary chose: noise, blur, weather, compression.

    apply: (x, level, generator) → images like x, (B, C, H, W); levels: for severity 1 … 5.

    >>> import torch
    >>> dim = Corruption("dim", lambda x, level, generator: level * x, (0.9, 0.8, 0.7, 0.6, 0.5))
    >>> float(dim(torch.ones(1, 1, 2, 2), severity=5).mean())
    0.5
    """

    name: str
    apply: Callable[[Tensor, Any, torch.Generator], Tensor]
    levels: tuple[Any, ...]
    needs_colour: bool = False

    def __post_init__(self) -> None:
        if len(self.levels) != len(SEVERITIES):
            raise ValueError(f"{self.name} should have five levels; got {len(self.levels)}")

    @torch.no_grad()
    def __call__(self, x: Tensor, severity: int, *, seed: int = 0) -> Tensor:
        """x, (B, C, H, W) in [0, 1], corrupted; the same draws at every severity of one seed."""
        if severity not in SEVERITIES:
            raise ValueError(f"severity should be one of {SEVERITIES}; got {severity}")
        if (reason := self.unsupported(x)) is not None:
            raise ValueError(f"{self.name} cannot be done: {reason}")
        low, high = (float(end) for end in torch.aminmax(x))
        if low < -TOLERANCE or high > 1 + TOLERANCE:
            raise ValueError(f"images should lie in [0, 1]; got {low:g} to {high:g}")
        generator = torch.Generator(x.device).manual_seed(seed)
        return self.apply(x.clamp(0, 1), self.levels[severity - 1], generator).clamp(0, 1)

    def unsupported(self, x: Tensor) -> str | None:
        """Why x cannot be corrupted in this way, or None."""
        if x.ndim != 4:
            return f"it takes images (B, C, H, W), these have shape {tuple(x.shape)}"
        if self.needs_colour and x.shape[1] != 3:
            return f"it takes three colours, these images have {x.shape[1]} channel(s)"
        return None


def in_pixels(length: float, x: Tensor) -> float:
    """A length meant for 32×32 images, in pixels of x: longer in larger images, never shorter."""
    return length * max(1.0, min(x.shape[-2:]) / 32)


def shifted(x: Tensor, offset: Tensor) -> Tensor:
    """x(p + offset(p)) by bilinear interpolation, the edge repeated outside.

    x: (B, C, H, W); offset: (B, H, W, 2) or (B, 1, 1, 2), in pixels, across and then down.
    """
    lines = (torch.arange(side, dtype=x.dtype, device=x.device) for side in x.shape[-2:])
    position = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).flip(-1) + offset
    size = torch.tensor(x.shape[:-3:-1], dtype=x.dtype, device=x.device)  # width, height
    grid = (2 * position + 1) / size - 1  # grid_sample counts from −1 to 1, edge to edge
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def smooth_noise(x: Tensor, knots: int, channels: int, generator: torch.Generator) -> Tensor:
    """N(0, 1) on a grid of knots × knots, interpolated to the size of x: (B, channels, H, W)."""
    coarse = noise_like(x.new_empty(len(x), channels, knots, knots), generator)
    return F.interpolate(coarse, x.shape[-2:], mode="bicubic", align_corners=True)


def _blurred(x: Tensor, radius: float, kernel: Callable[[Tensor], Tensor]) -> Tensor:
    """Each channel convolved with kernel(‖u‖²), normalised; the edge is repeated outside."""
    whole = math.ceil(radius)
    line = torch.arange(-whole, whole + 1, dtype=x.dtype, device=x.device).square()
    weights = kernel(line[:, None] + line)
    padded = F.pad(x, [whole] * 4, mode="replicate").flatten(0, 1)[:, None]
    return F.conv2d(padded, (weights / weights.sum())[None, None]).view_as(x)


def gaussian_blur(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """k ∗ x with k(u) ∝ exp(−‖u‖²/2σ²)."""
    sigma = in_pixels(sigma, x)
    return _blurred(x, 4 * sigma, lambda squared: torch.exp(-squared / (2 * sigma**2)))


def defocus_blur(x: Tensor, radius: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """k ∗ x, k a disc whose edge falls off over one pixel, of the variance of CIFAR-10-C's."""
    edge = in_pixels(radius, x) + 0.5
    return _blurred(x, edge, lambda squared: (edge - squared.sqrt()).clamp(0, 1))


def motion_blur(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """Σ_i k_i x(· + i·u), k_i ∝ exp(−i²/2σ²), i ≥ 0; u drawn within 45° of the horizontal."""
    sigma = in_pixels(sigma, x)
    angle = torch.rand(len(x), dtype=x.dtype, device=x.device, generator=generator)
    angle = math.pi / 4 * (2 * angle - 1)
    direction = torch.stack([angle.cos(), angle.sin()], 1)[:, None, None]
    weights = [math.exp(-(step**2) / (2 * sigma**2)) for step in range(math.ceil(4 * sigma))]
    trail = [weight * shifted(x, step * direction) for step, weight in enumerate(weights)]
    return torch.stack(trail).sum(0) / sum(weights)


def pixelate(x: Tensor, share: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """P x Pᵀ: every pixel becomes the mean of those in its cell, `share` as many cells a side."""

    def means(side: int) -> Tensor:  # P_jk = 1/size of the cell where the centres of j and k lie
        centres = torch.arange(side, device=x.device) + 0.5
        cell = (centres * max(1, int(share * side)) / side).floor()
        same = (cell[:, None] == cell).to(x.dtype)
        return same / same.sum(1, keepdim=True)

    return means(x.shape[-2]) @ x @ means(x.shape[-1]).T


def jpeg(x: Tensor, quality: int, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """Encoded as JPEG of this quality and decoded; each channel alone unless there are three."""

    def decoded(pixels: np.ndarray) -> np.ndarray:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
        return np.asarray(Image.open(buffer), dtype=np.float32) / 255

    colours = x.shape[1] == 3
    bytes_ = x.mul(255).round().byte().numpy(force=True)
    images = bytes_.transpose(0, 2, 3, 1) if colours else bytes_.reshape(-1, *x.shape[2:])
    found = torch.from_numpy(np.stack([decoded(image) for image in images]))
    return (found.movedim(-1, 1) if colours else found.view(x.shape)).to(x)


def brightness(x: Tensor, change: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """V ← V + c in hue, saturation and value, V = max over colours: x·(V + c)/V; black: grey."""
    value = x.amax(1, keepdim=True)
    brighter = (value + change).clamp(0, 1)
    return torch.where(value > 0, x / value.clamp_min(SMALL), 1.0) * brighter


def contrast(x: Tensor, factor: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """m + c·(x − m), m each channel's mean."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


def saturate(x: Tensor, level: tuple[float, float], generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """S ← a·S + b with S = (V − min)/V, hue and V = max kept: V − (V − x)·S′/S; grey stays grey."""
    value = x.amax(1, keepdim=True)
    saturation = (value - x.amin(1, keepdim=True)) / value.clamp_min(SMALL)
    wanted = (level[0] * saturation + level[1]).clamp(0, 1)
    return value - (value - x) * wanted / saturation.clamp_min(SMALL)


def gaussian_noise(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """x + σε, ε ~ N(0, 1)."""
    return x + sigma * noise_like(x, generator)


def shot_noise(x: Tensor, photons: float, generator: torch.Generator) -> Tensor:
    """Poisson(c·x)/c: a pixel at 1 catches c photons on average."""
    return torch.poisson(photons * x, generator=generator) / photons


def impulse_noise(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Salt and pepper: `share` of the values becomes 0 or 1, evenly."""
    draw = torch.rand(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    return torch.where(draw < share / 2, 0.0, torch.where(draw < share, 1.0, x))


def speckle_noise(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """x + σ·x·ε, ε ~ N(0, 1): bright pixels suffer most."""
    return x + sigma * x * noise_like(x, generator)


def fog(x: Tensor, level: tuple[float, float], generator: torch.Generator) -> Tensor:
    """(x + c·fog)·m/(m + c), m the image's brightest value: fog adds light and reduces contrast.

    The fog is Σ_k w^{−k}·noise of ever finer grids, scaled to [0, 1]: CIFAR-10-C's plasma fractal.
    """
    amount, decay = level
    grids = enumerate((2, 3, 5, 9, 17))  # each twice as fine as the last
    octaves = [smooth_noise(x, knots, 1, generator) / decay**k for k, knots in grids]
    plasma = torch.stack(octaves).sum(0)
    low, high = plasma.amin((1, 2, 3), keepdim=True), plasma.amax((1, 2, 3), keepdim=True)
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * (plasma - low) / (high - low)) * brightest / (brightest + amount)


def elastic(x: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """x(p + size·u(p)), u a smooth random field of about unit variance, size in 1/32 of x.

    It moves pixels about as far as CIFAR-10-C's random affine map and field.
    """
    field = smooth_noise(x, 4, 2, generator).movedim(1, -1)
    return shifted(x, size * min(x.shape[-2:]) / 32 * field)


CORRUPTIONS = (
    Corruption("gaussian noise", gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    Corruption("shot noise", shot_noise, (500, 250, 100, 75, 50)),
    Corruption("impulse noise", impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    Corruption("speckle noise", speckle_noise, (0.06, 0.10, 0.12, 0.16, 0.20)),
    Corruption("gaussian blur", gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    Corruption("defocus blur", defocus_blur, (0.55, 0.69, 0.93, 1.0, 1.6)),
    Corruption("motion blur", motion_blur, (1.0, 1.5, 2.0, 2.0, 2.5)),
    Corruption("fog", fog, ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))),
    Corruption("brightness", brightness, (0.05, 0.10, 0.15, 0.20, 0.30)),
    Corruption("contrast", contrast, (0.75, 0.50, 0.40, 0.30, 0.15)),
    Corruption(
        "saturate", saturate, ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)), True
    ),
    Corruption("elastic", elastic, (0.4, 0.6, 0.8, 1.0, 1.2)),
    Corruption("pixelate", pixelate, (0.95, 0.90, 0.85, 0.75, 0.65)),
    Corruption("jpeg", jpeg, (80, 65, 58, 50, 40)),
)


@dataclass(frozen=True, eq=False)
class Shift:
    """Which of n examples a model gets right, clean and corrupted."""

    clean: Tensor  # (n,) bool
    correct: Mapping[str, Tensor]  # (5, n) bool for each corruption, one row a severity
    skipped: Mapping[str, str]  # for each corruption that these inputs do not allow, why
    seed: int

    def accuracy(self, corruption: str | None = None, severity: int | None = None) -> Interval:
        """Mean over the corruptions and severities, or of one of them; 95 % interval."""
        if severity is not None and severity not in SEVERITIES:
            raise ValueError(f"severity should be one of {list(SEVERITIES)}; got {severity}")
        chosen = [self.correct[corruption]] if corruption else list(self.correct.values())
        rows = torch.stack(chosen)[:, slice(None) if severity is None else [severity - 1]]
        return accuracy_interval(rows.flatten(0, 1))

    @property
    def clean_accuracy(self) -> Interval:
        """Without corruption."""
        return accuracy_interval(self.clean)

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON; `correct` as 0 and 1."""
        verdicts = {"clean": self.clean, **self.correct}
        corruptions = {
            name: {"mean": asdict(self.accuracy(name)),
                   "severities": [asdict(self.accuracy(name, s)) for s in SEVERITIES]}
            for name in self.correct
        }  # fmt: skip
        return {
            "n": len(self.clean), "seed": self.seed, "clean": asdict(self.clean_accuracy),
            "mean": asdict(self.accuracy()), "corruptions": corruptions,
            "skipped": dict(self.skipped),
            "correct": {name: rows.int().tolist() for name, rows in verdicts.items()},
        }  # fmt: skip


def shift(
    model: Model, x: Tensor, y: Tensor, *, corruptions: Sequence[Corruption] = CORRUPTIONS,
    seed: int = 0, batch_size: int = 250, progress: Progress | None = None,
) -> Shift:  # fmt: skip
    """Accuracy on x, (n, C, H, W) in [0, 1], with labels y, (n,), under every corruption."""
    device = device_of(model, x)
    x, y = x.to(device), y.to(device)
    skipped = {c.name: why for c in corruptions if (why := c.unsupported(x)) is not None}
    possible = [corruption for corruption in corruptions if corruption.name not in skipped]
    if not possible:
        reasons = "; ".join(dict.fromkeys(skipped.values()))
        raise ValueError(f"none of the corruptions can be done: {reasons}")
    correct = {}
    for done, corruption in enumerate(possible):
        if progress:
            progress(done, len(possible), corruption.name)
        corrupted = (corruption(x, severity, seed=seed) for severity in SEVERITIES)
        rows = [predictions(model, images, batch_size) == y for images in corrupted]
        correct[corruption.name] = torch.stack(rows).cpu()
    clean = (predictions(model, x, batch_size) == y).cpu()
    return Shift(clean, correct, skipped, seed)


def mixed_corruptions(x: Tensor, severity: int, *, seed: int = 0) -> Tensor:
    """x with one corruption an example, all in turn: (n, C, H, W)."""
    possible = [corruption for corruption in CORRUPTIONS if corruption.unsupported(x) is None]
    out = x.clone()
    for first, corruption in enumerate(possible[: len(x)]):
        rows = slice(first, None, len(possible))
        out[rows] = corruption(x[rows], severity, seed=seed)
    return out
