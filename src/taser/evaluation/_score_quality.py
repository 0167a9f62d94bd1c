"""How good a denoiser is as a score: measured on data that it has not seen."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from taser._progress import Progress
from taser.data import Augmentation
from taser.data._splitting import subset
from taser.scores import Denoiser, DenoisingScore, Gaussian, sigma_of
from taser.stein.identities import Estimate, ksd_test, stein_identity

TIMESTEPS = (10, 25, 50, 100, 200)


@dataclass(frozen=True)
class Level:
    """Quality at one noise level σ.

    error, linear: mean squared error of the denoiser and of the best linear one, as shares of σ²;
    stein: E[L f] at noised points for random test functions f, the worst by standard errors;
    score_rms: root mean square of the score at clean points; flip: ‖s(flip x) − flip s(x)‖/‖s‖,
    None for vectors.
    """

    timestep: int
    sigma: float
    error: float
    linear: float
    stein: Estimate
    score_rms: float
    flip: float | None

    @property
    def gain(self) -> float:
        """The share of the best linear denoiser's error that this one removes."""
        return 1 - self.error / self.linear


@dataclass(frozen=True)
class ScoreQuality:
    """Quality over noise levels, and the kernel Stein test of noised held-out data at t = 50."""

    levels: tuple[Level, ...]
    ksd: float
    ksd_p_value: float
    n: int

    def numbers(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)


def wiener(train: Tensor) -> Callable[[Tensor, float], Tensor]:
    """The best linear denoiser of the law of `train`, (N, *): m + C (C + σ²I)⁻¹ (x − m)."""
    p = Gaussian.fit(train.double(), 1e-6)
    values, vectors = torch.linalg.eigh(p.factor @ p.factor.T)

    def denoise(x: Tensor, sigma: float) -> Tensor:
        rows = (x.flatten(1).double() - p.mean) @ vectors
        kept = rows * (values / (values + sigma**2))
        return (p.mean + kept @ vectors.T).view(x.shape).to(x.dtype)

    return denoise


@torch.no_grad()
def score_quality(
    denoiser: Denoiser | DenoisingScore,
    train: Tensor,
    held_out: Tensor,
    *,
    timesteps: tuple[int, ...] = TIMESTEPS,
    functions: int = 5,
    seed: int = 0,
    batch: int = 256,
    progress: Progress | None = None,
) -> ScoreQuality:
    """Measure `denoiser` on held_out, (n, *), against the best linear denoiser of `train`."""
    if len(held_out) < 2:
        raise ValueError(f"quality takes at least two held-out examples; got {len(held_out)}")
    generator = torch.Generator(held_out.device).manual_seed(seed)
    linear = wiener(train)

    def some(n: int) -> Tensor:  # the first might be all of one class
        return held_out[subset(len(held_out), n)]

    levels = []
    for done, timestep in enumerate(timesteps):
        if progress:
            progress(done, len(timesteps), f"t = {timestep}")
        sigma = sigma_of(timestep)
        score = denoiser.at(sigma=sigma)
        parts = [score.noised(rows, generator) for rows in held_out.split(batch)]
        noised, s = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        denoised = noised + sigma**2 * s
        clean = torch.cat([score(rows) for rows in held_out.split(batch)])
        checks = [
            stein_identity(f, noised, s, generator=generator)
            for f in random_functions(noised, functions, generator)
        ]
        levels.append(
            Level(
                timestep=timestep,
                sigma=sigma,
                error=_mse(denoised, held_out) / sigma**2,
                linear=_mse(linear(noised, sigma), held_out) / sigma**2,
                stein=max(checks, key=lambda check: abs(check.z)),
                score_rms=float(clean.square().mean().sqrt()),
                flip=_flip_error(score, some(batch)) if held_out.ndim == 4 else None,
            )
        )
    reference = denoiser.at()
    noised, s = reference.noised(some(500), generator)
    test = ksd_test(noised, s, generator=generator)
    return ScoreQuality(tuple(levels), test.statistic, test.p_value, len(held_out))


@torch.no_grad()
def augmentation_error(
    score: Callable[[Tensor], Tensor], x: Tensor, augment: Augmentation, seed: int = 0
) -> float:
    """What is lost by moving a score with its image instead of asking the score again.

    ‖moved s(x) − s(moved x)‖/‖s(moved x)‖ over x, (n, C, H, W): the error of a score cache under
    crop and flip.
    """
    moved, field = augment(x, score(x), generator=torch.Generator().manual_seed(seed))
    assert field is not None
    asked = score(moved)
    return float((field - asked).norm() / asked.norm())


def random_functions(
    x: Tensor, count: int, generator: torch.Generator
) -> list[Callable[[Tensor], Tensor]]:
    """Smooth functions to ask the Stein identity with: sines of projections of unit variance.

    With phases of their own, because functions that are odd about the mean of a symmetric law
    fulfil it with a score of any size.
    """
    scale = float(x.flatten(1).std(0).mean()) * math.sqrt(x[0].numel())
    centre = x.mean(0).flatten()
    out: list[Callable[[Tensor], Tensor]] = []
    for _ in range(count):
        w = torch.randn(x[0].numel(), 16, generator=generator, device=x.device).to(x) / scale

        phase = 2 * math.pi * torch.rand(16, generator=generator, device=x.device).to(x)

        def f(x: Tensor, w: Tensor = w, phase: Tensor = phase) -> Tensor:
            return torch.sin((x.flatten(1) - centre) @ w + phase).sum(1)

        out.append(f)
    return out


def _mse(a: Tensor, b: Tensor) -> float:
    return float((a - b).square().mean())


def _flip_error(score: Callable[[Tensor], Tensor], x: Tensor) -> float:
    straight, mirrored = score(x), score(x.flip(-1)).flip(-1)
    return float((straight - mirrored).norm() / straight.norm())
