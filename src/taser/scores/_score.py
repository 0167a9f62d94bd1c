"""Scores at a noise level, Tweedie's formula, and changes of coordinates."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, Protocol, Self, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from taser._runtime import has_bfloat16, noise_like


@runtime_checkable
class Score(Protocol):
    """s(x) ≈ ∇log p(x): takes (B, *), returns the same shape, detached from any graph.

    Any callable of that form will do; :class:`taser.scores.Affine` changes its coordinates.
    """

    def __call__(self, x: Tensor, /) -> Tensor: ...


REFERENCE_TIMESTEP = 50  # the paper's, in DDPM's linear schedule


def pixel_sigma(alpha_bar: float) -> float:
    """σ on pixels in [0, 1]: half of √((1−ᾱ)/ᾱ), which √ᾱ u + √(1−ᾱ) ε has relative to √ᾱ u."""
    return 0.5 * ((1 - alpha_bar) / alpha_bar) ** 0.5 if alpha_bar > 0 else math.inf


@lru_cache
def _ddpm_sigmas() -> list[float]:
    alphas_bar = (1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)).cumprod(0)
    return [pixel_sigma(alpha_bar) for alpha_bar in alphas_bar.tolist()]


def sigma_of(timestep: int) -> float:
    """The noise of a timestep as a standard deviation on pixels in [0, 1]. At t = 50: 0.088.

    DDPM's linear schedule: ᾱ_t = Π_{i≤t} (1 − β_i), β from 1e-4 to 0.02 in 1000 steps.
    """
    return noise_level(timestep, None)


def timestep_of(sigma: float) -> int:
    """The timestep whose noise is nearest to `sigma`, in log scale."""
    target = math.log(check_sigma(sigma))
    return min(range(1000), key=lambda t: abs(math.log(sigma_of(t)) - target))


def check_sigma(sigma: float) -> float:
    if not 0 < sigma < math.inf:
        wanted = "positive and finite, in the units of the inputs"
        raise ValueError(f"sigma should be {wanted}; got {sigma}")
    return float(sigma)


def check_floating(name: str, given: Tensor) -> None:
    """Raise unless `given` is a floating-point tensor."""
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} should be a torch.Tensor; got {type(given).__name__}")
    if not given.is_floating_point():
        raise ValueError(f"{name} should be floating point; got {given.dtype}: {name}.float()")


def noise_level(
    timestep: int | None, sigma: float | None, sigmas: Sequence[float] | None = None
) -> float:
    """σ, given itself or by a timestep; by default at the reference timestep.

    sigmas: σ of each timestep, by default in DDPM's linear schedule.
    """
    if timestep is not None and sigma is not None:
        raise ValueError(f"give timestep or sigma, not both; got {timestep} and {sigma}")
    if sigma is not None:
        return check_sigma(sigma)
    levels = _ddpm_sigmas() if sigmas is None else sigmas
    timestep = REFERENCE_TIMESTEP if timestep is None else timestep
    if not 0 <= timestep < len(levels):
        raise ValueError(f"timestep should lie in 0…{len(levels) - 1}; got {timestep}")
    return check_sigma(levels[timestep])


class NoisedScore(nn.Module):
    """s_σ = ∇log p_σ, p_σ the distribution of x + σε: the score of the data with noise of size σ.

    With it the Stein identity E[L f] = 0 holds at noised points, which :meth:`noised` draws.
    """

    sigma: float

    @torch.no_grad()
    def noised(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A draw x_σ = x + σε and the score there, both (B, *)."""
        moved = x + self.sigma * noise_like(x, generator)
        return moved, self(moved)

    @torch.no_grad()
    def paired(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(s(x + σε) − s(x − σε))/2 for a draw of ε, (B, *) → (B, *); its mean over ε is zero.

        About −Jε/σ with J = −σ²∇s; the part of the score that is the same at both cancels.
        """
        return self.along(x, noise_like(x, generator))

    @torch.no_grad()
    def along(self, x: Tensor, v: Tensor) -> Tensor:
        """(s(x + σv) − s(x − σv))/2, about −Jv/σ: the part of v that looks like noise, (B, *)."""
        forth, back = self(torch.cat([x + self.sigma * v, x - self.sigma * v])).chunk(2)
        return (forth - back) / 2


Denoise = Callable[[Tensor, float], Tensor]  # (x + σε, σ) → E[x | x + σε], (B, *)
Precision = Literal["float32", "bfloat16", "auto"]  # "auto": bfloat16 where the hardware has it


class DenoisingScore(NoisedScore):
    """s_σ(x) = (D(x; σ) − x)/σ², the score of the data with noise of standard deviation σ.

    D(x; σ) = E[x₀ | x₀ + σε = x] is the posterior mean, which every diffusion model learns in one
    parameterisation or another (Tweedie's formula).

    precision: of D's computation. If D predicts the noise, as ours do, bfloat16 changes a score by
    less than 1 % and halves the time; any other D loses digits in D − x.
    """

    def __init__(self, denoise: Denoise, sigma: float, *, precision: Precision = "float32") -> None:
        super().__init__()
        if precision not in get_args(Precision):
            raise ValueError(f"precision should be one of {get_args(Precision)}; got {precision!r}")
        self.denoise, self.sigma = denoise, check_sigma(sigma)
        self.sigmas: Sequence[float] | None = None  # σ of a diffusion model's timesteps
        self.factor = 1.0  # multiplies the score; see :func:`normalised`
        self.precision: Precision = precision
        self.eval()

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Stays in eval mode, also inside other modules: dropout would falsify the score."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """s_σ at x itself: (B, *) → (B, *), detached."""
        check_floating("x", x)
        half = self.precision == "bfloat16" or (self.precision == "auto" and has_bfloat16(x.device))
        own = next((p.dtype for p in self.parameters() if p.is_floating_point()), x.dtype)
        inside = x.to(own)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            denoised = self.denoise(inside, self.sigma)
        if denoised.shape != x.shape:
            given, got = tuple(x.shape), tuple(denoised.shape)
            raise ValueError(f"a denoiser should return the shape it was given, {given}; got {got}")
        full = torch.promote_types(own, torch.float32)  # also if the network is in half precision
        s = self.factor * (denoised.to(full) - inside.to(full)) / self.sigma**2
        return s.to(x.dtype).detach()

    def at(self, *, timestep: int | None = None, sigma: float | None = None) -> "DenoisingScore":
        """The same denoiser at another noise level: a timestep, or σ.

        Timesteps are those of the diffusion model's schedule, or by default DDPM's linear one.
        """
        score = copy.copy(self)  # it shares the network
        score.sigma = noise_level(timestep, sigma, self.sigmas)
        return score

    def __repr__(self) -> str:
        """Without the layers, which would fill pages."""
        size = sum(parameter.numel() for parameter in self.parameters()) / 1e6
        network = next((type(part).__name__ for part in self.children()), None)
        by = f"{network}, {size:.2f} M parameters" if network else "a function"
        return f"DenoisingScore(sigma={self.sigma:g}, by {by})"


class Affine(nn.Module):
    """A score given in u = scale·x + shift, turned into a score in x.

    By the chain rule s_x(x) = scale · s_u(scale·x + shift), and r_x = scale² · r_u for a scalar
    scale, so λ depends on the coordinates. From [-1, 1] to pixels in [0, 1]:
    Affine(score, scale=2, shift=-1).

    scale, shift: numbers, or tensors that broadcast against one input (per channel: (C, 1, 1)).
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, score: Score, scale: Tensor | float = 1.0, shift: Tensor | float = 0.0
    ) -> None:
        super().__init__()
        scale, shift = (1.0 * torch.as_tensor(number) for number in (scale, shift))
        if bool((scale == 0).any()) or not bool(torch.isfinite(scale).all()):
            raise ValueError(f"scale should be finite and nowhere zero; got {scale.tolist()}")
        self.score = score
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def extra_repr(self) -> str:
        return f"scale={self.scale.tolist()}, shift={self.shift.tolist()}"

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """s_x at x: (B, *) → (B, *), detached."""
        scale, shift = self.scale.to(x.dtype), self.shift.to(x.dtype)
        return (scale * self.score(scale * x + shift)).detach()


def normalised(score: DenoisingScore, x: Tensor, reference_sigma: float) -> DenoisingScore:
    """The score times c, so that its standard deviation on x is that at the reference level.

    c_t = std(s_ref)/std(s_t) on x: (N, *), as the paper intends; its formula is inverted.
    """
    reference, here = score.at(sigma=reference_sigma)(x).std(), score(x).std()
    if not float(here) > 0:
        raise ValueError("the score is constant on x, so it has no size to normalise")
    scaled = copy.copy(score)
    scaled.factor = float(reference / here) * score.factor
    return scaled
