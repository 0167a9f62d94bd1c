"""The quality of a denoiser as a score, measured on held-out data."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from taser._files import Progress
from taser.data._dataset import subset
from taser.scores import Denoiser, DenoisingScore, Gaussian
from taser.stein.identities import Estimate, ksd_test, stein_identity

TIMESTEPS = (10, 25, 50, 100, 200)


@dataclass(frozen=True)
class Level:
    """Quality at one noise level σ."""

    timestep: int
    sigma: float
    error: float  # mean squared error of the denoiser, as a share of σ²
    linear: float  # the error of the best linear denoiser
    stein: Estimate  # E[L f] at noised points, for the worst of random test functions f
    score_rms: float  # root mean square of s at clean points
    flip: float | None  # ‖s(flip x) − flip s(x)‖/‖s‖, None for vectors

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


@torch.no_grad()
def score_quality(
    denoiser: Denoiser | DenoisingScore, train: Tensor, held_out: Tensor, *,
    timesteps: tuple[int, ...] = TIMESTEPS, functions: int = 5, seed: int = 0, batch: int = 256,
    progress: Progress | None = None,
) -> ScoreQuality:  # fmt: skip
    """Measure `denoiser` on held_out, (n, *), against the best linear denoiser of `train`."""
    if len(held_out) < 2:
        raise ValueError(f"quality takes at least two held-out examples; got {len(held_out)}")
    generator = torch.Generator(held_out.device).manual_seed(seed)
    gaussian = Gaussian.fit(train.double(), 1e-6)  # its posterior mean is the best linear denoiser

    levels = []
    for done, timestep in enumerate(timesteps):
        if progress:
            progress(done, len(timesteps), f"t = {timestep}")
        score = denoiser.at(timestep=timestep)
        sigma = score.sigma
        parts = [score.noised(rows, generator) for rows in held_out.split(batch)]
        noised, s = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        # The errors of D(x; σ) = x + σ²s, as shares of σ².
        error, linear = (
            _mean_square(noised + sigma**2 * scores - held_out) / sigma**2
            for scores in (s, gaussian.at(sigma=sigma)(noised))
        )
        checks = [
            stein_identity(f, noised, s, generator=generator)
            for f in random_functions(noised, functions, generator)
        ]
        stein = max(checks, key=lambda check: abs(check.z))
        rms = _mean_square(torch.cat([score(rows) for rows in held_out.split(batch)])) ** 0.5
        flip = None
        if held_out.ndim == 4:
            some = held_out[subset(len(held_out), batch)]
            flip = _relative_error(score(some.flip(-1)).flip(-1), score(some))
        levels.append(Level(timestep, sigma, error, linear, stein, rms, flip))
    some = held_out[subset(len(held_out), 500)]  # the first might be all of one class
    test = ksd_test(*denoiser.at(timestep=50).noised(some, generator), generator=generator)
    return ScoreQuality(tuple(levels), test.statistic, test.p_value, len(held_out))


def random_functions(
    x: Tensor, count: int, generator: torch.Generator
) -> list[Callable[[Tensor], Tensor]]:
    """Sines of projections of unit variance, with random phases: odd functions would test less."""
    d, centre = x[0].numel(), x.mean(0).flatten()
    scale = float(x.flatten(1).std(0).mean()) * math.sqrt(d)

    def function() -> Callable[[Tensor], Tensor]:
        w = torch.randn(d, 16, generator=generator, device=x.device).to(x) / scale
        phase = 2 * math.pi * torch.rand(16, generator=generator, device=x.device).to(x)
        return lambda x: torch.sin((x.flatten(1) - centre) @ w + phase).sum(1)

    return [function() for _ in range(count)]


def _mean_square(x: Tensor) -> float:
    return float(x.square().mean())


def _relative_error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())
