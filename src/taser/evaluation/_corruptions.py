"""Common corruptions of images, after CIFAR-10-C (Hendrycks and Dietterich, 2019), and accuracy.

The levels of severity 1 … 5 are CIFAR-10-C's own; where our form is simpler than theirs, they are
chosen to be about as strong, and the function says so. Pixels are not rounded to bytes.

A corruption is a function (x, level, generator) → images like x, (B, C, H, W), and a line of
`CORRUPTIONS` with its levels.
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
from taser.attacks import Model

from ._record import device_of, predictions
from ._statistics import Interval, accuracy_interval

SEVERITIES = (1, 2, 3, 4, 5)
TOLERANCE = 1e-6  # outside [0, 1]: rounding
SMALL = 1e-12  # in place of zero in a denominator


@dataclass(frozen=True)
class Corruption:
    """A change that no adversary chose: noise, blur, weather, compression.

    apply: (x, level, generator) → images like x, (B, C, H, W); levels: those of severity 1 … 5;
    kind: the group it is reported with.

    >>> import torch
    >>> dim = Corruption("dim", lambda x, level, generator: level * x, (0.9, 0.8, 0.7, 0.6, 0.5))
    >>> float(dim(torch.ones(1, 1, 2, 2), severity=5).mean())
    0.5
    """

    name: str
    apply: Callable[[Tensor, Any, torch.Generator], Tensor]
    levels: tuple[Any, ...]
    kind: str = "other"
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
        if float(x.min()) < -TOLERANCE or float(x.max()) > 1 + TOLERANCE:
            raise ValueError(
                f"images should lie in [0, 1]; got {float(x.min()):g} to {float(x.max()):g}"
            )
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
    """A length meant for 32×32 images, in pixels of x: longer in larger images.

    It is not shorter in smaller ones, where a blur of a quarter of a pixel would do nothing.
    """
    return length * max(1.0, min(x.shape[-2:]) / 32)


def shifted(x: Tensor, offset: Tensor) -> Tensor:
    """x(p + offset(p)) by bilinear interpolation, the edge repeated outside.

    x: (B, C, H, W); offset: (B, H, W, 2) or (B, 1, 1, 2), in pixels, across and then down.
    """
    height, width = x.shape[-2:]
    down, across = torch.meshgrid(
        torch.arange(height, dtype=x.dtype, device=x.device),
        torch.arange(width, dtype=x.dtype, device=x.device),
        indexing="ij",
    )
    position = torch.stack([across, down], -1) + offset
    size = torch.tensor([width, height], dtype=x.dtype, device=x.device)
    grid = (2 * position + 1) / size - 1  # grid_sample counts from −1 to 1, edge to edge
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def smooth_noise(x: Tensor, knots: int, channels: int, generator: torch.Generator) -> Tensor:
    """N(0, 1) on a grid of knots × knots, interpolated to the size of x: (B, channels, H, W)."""
    shape = (len(x), channels, knots, knots)
    coarse = torch.randn(shape, dtype=x.dtype, device=x.device, generator=generator)
    return F.interpolate(coarse, x.shape[-2:], mode="bicubic", align_corners=True)


def gaussian_blur(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """k ∗ x with k(u) ∝ exp(−‖u‖²/2σ²)."""
    sigma = in_pixels(sigma, x)
    squared = _squared_distance(math.ceil(4 * sigma), x)
    return _convolved(x, torch.exp(-squared / (2 * sigma**2)))


def defocus_blur(x: Tensor, radius: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """k ∗ x with k a disc whose edge falls off over one pixel.

    The radii give kernels of the variance that those of CIFAR-10-C have, which are a coarse disc
    smoothed by a 3×3 Gaussian.
    """
    radius = in_pixels(radius, x)
    distance = _squared_distance(math.ceil(radius + 0.5), x).sqrt()
    return _convolved(x, (radius + 0.5 - distance).clamp(0, 1))


def motion_blur(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """Σ_i k_i x(· + i·u) with k_i ∝ exp(−i²/2σ²), i ≥ 0: a trail in one direction u.

    The direction is drawn for each image, within 45° of the horizontal.
    """
    sigma = in_pixels(sigma, x)
    angle = torch.rand(len(x), dtype=x.dtype, device=x.device, generator=generator)
    angle = math.pi / 4 * (2 * angle - 1)
    direction = torch.stack([angle.cos(), angle.sin()], 1)
    trail, total = torch.zeros_like(x), 0.0
    for step in range(math.ceil(4 * sigma)):
        weight = math.exp(-(step**2) / (2 * sigma**2))
        trail += weight * shifted(x, step * direction[:, None, None])
        total += weight
    return trail / total


def _squared_distance(radius: int, x: Tensor) -> Tensor:
    """‖u‖² for u in a square of pixels around zero: (2·radius + 1, 2·radius + 1)."""
    line = torch.arange(-radius, radius + 1, dtype=x.dtype, device=x.device).square()
    return line[:, None] + line


def _convolved(x: Tensor, kernel: Tensor) -> Tensor:
    """Each channel convolved with the kernel, normalised; the edge is repeated outside."""
    padded = F.pad(x, [len(kernel) // 2] * 4, mode="replicate").flatten(0, 1)[:, None]
    return F.conv2d(padded, (kernel / kernel.sum())[None, None]).view_as(x)


def pixelate(x: Tensor, share: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """P x Pᵀ: every pixel becomes the mean of those in its cell, `share` as many cells a side."""
    rows, columns = (_cell_means(side, share, x) for side in x.shape[-2:])
    return rows @ x @ columns.T


def _cell_means(side: int, share: float, x: Tensor) -> Tensor:
    """P, (side, side): P_jk = 1/size of the cell where the centres of j and k lie, or 0."""
    centres = torch.arange(side, device=x.device) + 0.5
    cell = (centres * max(1, int(share * side)) / side).floor()
    same = (cell[:, None] == cell).to(x.dtype)
    return same / same.sum(1, keepdim=True)


def jpeg(x: Tensor, quality: int, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """Encoded as JPEG of this quality and decoded; each channel alone unless there are three."""
    images = x if x.shape[1] == 3 else x.flatten(0, 1)[:, None]
    return torch.stack([_through_jpeg(image, quality) for image in images]).view_as(x).to(x)


def _through_jpeg(image: Tensor, quality: int) -> Tensor:
    """One image (C, H, W), with C one or three."""
    pixels = image.mul(255).round().byte().movedim(0, -1).numpy(force=True)
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(
        buffer, "JPEG", quality=quality
    )
    read = np.asarray(Image.open(buffer), dtype=np.float32) / 255
    return torch.from_numpy(read).reshape(pixels.shape).movedim(-1, 0)


def brightness(x: Tensor, change: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """V ← V + c in hue, saturation and value, where V = max over colours: x·(V + c)/V.

    Black, which has no colour to keep, becomes grey.
    """
    value = x.amax(1, keepdim=True)
    brighter = (value + change).clamp(0, 1)
    return torch.where(value > 0, x / value.clamp_min(SMALL), 1.0) * brighter


def contrast(x: Tensor, factor: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """m + c·(x − m), m each channel's mean."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + factor * (x - mean)


def saturate(x: Tensor, level: tuple[float, float], generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """S ← a·S + b with S = (V − min)/V, hue and V = max kept: V − (V − x)·S′/S.

    Grey stays grey, since it has no hue.
    """
    factor, plus = level
    value = x.amax(1, keepdim=True)
    saturation = (value - x.amin(1, keepdim=True)) / value.clamp_min(SMALL)
    wanted = (factor * saturation + plus).clamp(0, 1)
    return value - (value - x) * wanted / saturation.clamp_min(SMALL)


def gaussian_noise(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """x + σε, ε ~ N(0, 1)."""
    return x + sigma * _normal(x, generator)


def shot_noise(x: Tensor, photons: float, generator: torch.Generator) -> Tensor:
    """Poisson(c·x)/c: a pixel at 1 catches c photons on average."""
    return torch.poisson(photons * x, generator=generator) / photons


def impulse_noise(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Salt and pepper: `share` of the values becomes 0 or 1, evenly."""
    draw = torch.rand(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    return torch.where(draw < share / 2, 0.0, torch.where(draw < share, 1.0, x))


def speckle_noise(x: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """x + σ·x·ε, ε ~ N(0, 1): bright pixels suffer most."""
    return x + sigma * x * _normal(x, generator)


def _normal(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)


KNOTS = (2, 3, 5, 9, 17)  # each grid twice as fine as the last


def fog(x: Tensor, level: tuple[float, float], generator: torch.Generator) -> Tensor:
    """(x + c·fog)·m/(m + c), m the image's brightest value: fog adds light and reduces contrast.

    The fog is Σ_k w^{−k}·noise of ever finer grids, scaled to [0, 1], for the plasma fractal of
    CIFAR-10-C, whose amplitude falls by w from one grid to the next as well.
    """
    amount, decay = level
    octaves = [
        smooth_noise(x, knots, 1, generator) / decay**octave for octave, knots in enumerate(KNOTS)
    ]
    plasma = torch.stack(octaves).sum(0)
    low, high = plasma.amin((1, 2, 3), keepdim=True), plasma.amax((1, 2, 3), keepdim=True)
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * (plasma - low) / (high - low)) * brightest / (brightest + amount)


def elastic(x: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """x(p + size·u(p)) with u a smooth random field of about unit variance, size in 1/32 of x.

    CIFAR-10-C has a random affine map and a field of its own; this one field of 4 × 4 knots moves
    pixels about as far.
    """
    field = smooth_noise(x, 4, 2, generator).movedim(1, -1)
    return shifted(x, size * min(x.shape[-2:]) / 32 * field)


CORRUPTIONS = (
    Corruption("gaussian noise", gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10), "noise"),
    Corruption("shot noise", shot_noise, (500, 250, 100, 75, 50), "noise"),
    Corruption("impulse noise", impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07), "noise"),
    Corruption("speckle noise", speckle_noise, (0.06, 0.10, 0.12, 0.16, 0.20), "noise"),
    Corruption("gaussian blur", gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0), "blur"),
    Corruption("defocus blur", defocus_blur, (0.55, 0.69, 0.93, 1.0, 1.6), "blur"),
    Corruption("motion blur", motion_blur, (1.0, 1.5, 2.0, 2.0, 2.5), "blur"),
    Corruption("fog", fog, ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)), "light"),
    Corruption("brightness", brightness, (0.05, 0.10, 0.15, 0.20, 0.30), "light"),
    Corruption("contrast", contrast, (0.75, 0.50, 0.40, 0.30, 0.15), "light"),
    Corruption("saturate", saturate, ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),
               "light", needs_colour=True),
    Corruption("elastic", elastic, (0.4, 0.6, 0.8, 1.0, 1.2), "digital"),
    Corruption("pixelate", pixelate, (0.95, 0.90, 0.85, 0.75, 0.65), "digital"),
    Corruption("jpeg", jpeg, (80, 65, 58, 50, 40), "digital"),
)  # fmt: skip
"""Every corruption with its levels and its kind."""


@dataclass(frozen=True, eq=False)
class Shift:
    """Which of n examples a model gets right, clean and corrupted.

    clean: (n,) bool; correct: for each corruption (5, n) bool, one row a severity; skipped: for
    each corruption that these inputs do not allow, why.
    """

    clean: Tensor
    correct: Mapping[str, Tensor]
    skipped: Mapping[str, str]
    seed: int

    def accuracy(self, corruption: str | None = None, severity: int | None = None) -> Interval:
        """Mean over the corruptions and severities, or of one of them; 95 % interval.

        The bootstrap draws examples with all their corruptions, which are not independent.
        """
        if severity is not None and severity not in SEVERITIES:
            raise ValueError(f"severity should be one of {list(SEVERITIES)}; got {severity}")
        chosen = [self.correct[corruption]] if corruption else list(self.correct.values())
        rows = torch.stack(chosen)[:, slice(None) if severity is None else [severity - 1]]
        return accuracy_interval(rows.flatten(0, 1), seed=self.seed)

    @property
    def clean_accuracy(self) -> Interval:
        """Without corruption."""
        return accuracy_interval(self.clean, seed=self.seed)

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON; `correct` as 0 and 1."""
        return {
            "n": len(self.clean),
            "seed": self.seed,
            "clean": asdict(self.clean_accuracy),
            "mean": asdict(self.accuracy()),
            "corruptions": {
                name: {
                    "mean": asdict(self.accuracy(name)),
                    "severities": [asdict(self.accuracy(name, s)) for s in SEVERITIES],
                }
                for name in self.correct
            },
            "skipped": dict(self.skipped),
            "correct": {"clean": self.clean.int().tolist()}
            | {name: rows.int().tolist() for name, rows in self.correct.items()},
        }


def shift(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    corruptions: Sequence[Corruption] = CORRUPTIONS,
    seed: int = 0,
    batch_size: int = 250,
    progress: Progress | None = None,
) -> Shift:
    """Accuracy on x, (n, C, H, W) in [0, 1], with labels y, (n,), under every corruption."""
    device = device_of(model, x)
    x, y = x.to(device), y.to(device)

    def right(x: Tensor) -> Tensor:
        return (predictions(model, x, batch_size) == y).cpu()

    skipped = {c.name: why for c in corruptions if (why := c.unsupported(x)) is not None}
    possible = [corruption for corruption in corruptions if corruption.name not in skipped]
    if not possible:
        raise ValueError(
            f"none of the corruptions can be done: {'; '.join(dict.fromkeys(skipped.values()))}"
        )
    correct = {}
    for done, corruption in enumerate(possible):
        if progress:
            progress(done, len(possible), corruption.name)
        rows = [right(corruption(x, severity, seed=seed)) for severity in SEVERITIES]
        correct[corruption.name] = torch.stack(rows)
    return Shift(right(x), correct, skipped, seed)


def mixed_corruptions(
    x: Tensor, severity: int, *, corruptions: Sequence[Corruption] = CORRUPTIONS, seed: int = 0
) -> Tensor:
    """x with one corruption an example, all in turn: (n, C, H, W)."""
    possible = [corruption for corruption in corruptions if corruption.unsupported(x) is None]
    out = x.clone()
    for first, corruption in enumerate(possible[: len(x)]):
        rows = slice(first, None, len(possible))
        out[rows] = corruption(x[rows], severity, seed=seed)
    return out
