"""Noise levels, and Tweedie's formula: a denoiser is a score at a noise level."""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, Protocol, Self, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from taser._tensors import has_bfloat16


@runtime_checkable
class Score(Protocol):
    """s(x) ≈ ∇log p(x): takes (B, *), returns the same shape, detached from any graph.

    Any callable of that form is a score. The coordinates are those of `x`: a score written for
    other coordinates goes through :class:`taser.scores.Affine` first.
    """

    def __call__(self, x: Tensor, /) -> Tensor: ...


REFERENCE_TIMESTEP = 50
"""The paper's timestep, t = 50 of DDPM's linear schedule."""


@lru_cache
def _alphas_bar() -> Tensor:
    return (1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)).cumprod(0)


def pixel_sigma(alpha_bar: float) -> float:
    """The noise of ᾱ as a standard deviation on pixels in [0, 1].

    A diffusion model in [-1, 1] sees √ᾱ u + √(1−ᾱ) ε, which is √ᾱ (u + σ_u ε) with
    σ_u = √((1−ᾱ)/ᾱ); a pixel is half as wide as u, so σ = σ_u/2.
    """
    return 0.5 * ((1 - alpha_bar) / alpha_bar) ** 0.5


def sigma_of(timestep: int) -> float:
    """The noise of a timestep as a standard deviation on pixels in [0, 1]. At t = 50: 0.088.

    Of DDPM's linear schedule: ᾱ_t = Π_{i≤t} (1 − β_i), β from 1e-4 to 0.02 in 1000 steps.
    """
    if not 0 <= timestep < 1000:
        raise ValueError(f"timestep should lie in 0…999, DDPM's linear schedule; got {timestep}")
    return pixel_sigma(float(_alphas_bar()[timestep]))


def timestep_of(sigma: float) -> int:
    """The timestep whose noise is nearest to `sigma`, in log scale."""
    levels = 0.5 * ((1 - _alphas_bar()) / _alphas_bar()).sqrt()
    return int((levels / check_sigma(sigma)).log().abs().argmin())


def check_sigma(sigma: float) -> float:
    """Raise unless sigma is a positive number."""
    if not sigma > 0:
        raise ValueError(f"sigma should be positive, in the units of the inputs; got {sigma}")
    return float(sigma)


def noise_level(timestep: int | None, sigma: float | None) -> float:
    """σ from a timestep or from itself; the reference timestep's if neither is given."""
    if timestep is not None and sigma is not None:
        raise ValueError(f"give timestep or sigma, not both; got {timestep} and {sigma}")
    if sigma is not None:
        return check_sigma(sigma)
    return sigma_of(REFERENCE_TIMESTEP if timestep is None else timestep)


def noise_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws of N(0, I) in the shape and dtype and on the device of x."""
    return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)


class NoisedScore(nn.Module):
    """s_σ = ∇log p_σ, p_σ the law of x + σε: the score of the data after noise of deviation σ.

    Subclasses define `forward`, s_σ at x itself: (B, *) → (B, *), detached. The Stein identity
    E[L f] = 0 holds for s_σ at noised points, which :meth:`noised` draws.
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

        About −Jε/σ, with J = −σ²∇s the directions that the denoiser takes for noise. What it says
        of x itself, whatever the noise, drops out: that can be many times the rest.
        """
        return self.along(x, noise_like(x, generator))

    @torch.no_grad()
    def along(self, x: Tensor, v: Tensor) -> Tensor:
        """(s(x + σv) − s(x − σv))/2, about −Jv/σ: what of v is taken for noise, (B, *)."""
        return (self(x + self.sigma * v) - self(x - self.sigma * v)) / 2


Denoise = Callable[[Tensor, float], Tensor]
"""(x + σε, σ) → E[x | x + σε], in the coordinates of x: (B, *) → (B, *)."""

Precision = Literal["float32", "bfloat16", "auto"]
"""Of the network inside a score; "auto": bfloat16 where the hardware has it."""


class DenoisingScore(NoisedScore):
    """s_σ(x) = (D(x; σ) − x)/σ², the score of the data's law after noise of deviation σ.

    D(x; σ) = E[x₀ | x₀ + σε = x] is the posterior mean, which is what every diffusion model
    learns, in one parameterisation or another (Tweedie's formula). Called at a clean x it gives
    s_σ(x), as the paper uses it.

    precision: in which D computes. A score is an estimate, and bfloat16 moves it by less than a
    hundredth, for half the time; what is predicted has to be noise, as it is by our denoisers and
    nearly all diffusion models, since a rounded D loses digits in D − x.
    """

    def __init__(self, denoise: Denoise, sigma: float, *, precision: Precision = "float32") -> None:
        super().__init__()
        if precision not in get_args(Precision):
            raise ValueError(f"precision should be one of {get_args(Precision)}; got {precision!r}")
        self.denoise = denoise
        self.sigma = check_sigma(sigma)
        self.precision: Precision = precision
        self.eval()

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Stays in evaluation mode, whatever holds it: a score with dropout would not be one."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """s_σ at x itself: (B, *) → (B, *), detached."""
        half = self.precision == "bfloat16" or (self.precision == "auto" and has_bfloat16(x.device))
        own = next((p.dtype for p in self.parameters() if p.is_floating_point()), x.dtype)
        inside = x.to(own)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            denoised = self.denoise(inside, self.sigma)
        if denoised.shape != x.shape:
            raise ValueError(
                f"the denoiser should return the shape it was given, {tuple(x.shape)}; got "
                f"{tuple(denoised.shape)}: is it a score model for such inputs?"
            )
        full = torch.promote_types(own, torch.float32)  # of a network in half precision, too
        return ((denoised.to(full) - inside.to(full)) / self.sigma**2).to(x.dtype).detach()

    def at(self, *, timestep: int | None = None, sigma: float | None = None) -> "DenoisingScore":
        """The same denoiser at another noise level: a timestep of DDPM's schedule, or σ."""
        level = noise_level(timestep, sigma)
        score = DenoisingScore(self.denoise, level, precision=self.precision)
        for name, network in self.named_children():  # what an adapter holds beside its function
            score.add_module(name, network)
        return score

    def __repr__(self) -> str:
        """One line: the layers of a diffusion model would fill pages."""
        size = sum(parameter.numel() for parameter in self.parameters()) / 1e6
        network = next((type(part).__name__ for part in self.children()), None)
        by = f"{network}, {size:.2f} M parameters" if network else "a function"
        return f"DenoisingScore(sigma={self.sigma:g}, by {by})"
