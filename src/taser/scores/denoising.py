"""The score of the noised data, from any denoiser: Tweedie's formula, written once."""

from collections.abc import Callable
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn

from taser.device import has_bfloat16

from .noise import level

Denoise = Callable[[Tensor, float], Tensor]
"""(x + σε, σ) → E[x | x + σε], in the coordinates of x: (B, *) → (B, *)."""

Precision = Literal["float32", "bfloat16", "auto"]
"""Of the network inside a score; "auto": bfloat16 where the hardware has it."""


class DenoisingScore(nn.Module):
    """s_σ(x) = (D(x; σ) − x)/σ², the score of the data's law after noise of deviation σ.

    D(x; σ) = E[x₀ | x₀ + σε = x] is the posterior mean, which is what every diffusion model
    learns, in one parameterisation or another (Tweedie's formula).

    Called at a clean x it gives s_σ(x), as the paper uses it. The Stein identity holds for s_σ at
    noised points, which :meth:`noised` draws.

    precision: in which D computes. A score is an estimate, and bfloat16 moves it by less than a
    hundredth, for half the time; what is predicted has to be noise, as it is by our denoisers and
    nearly all diffusion models, since a rounded D loses digits in D − x.
    """

    def __init__(self, denoise: Denoise, sigma: float, *, precision: Precision = "float32") -> None:
        super().__init__()
        if precision not in get_args(Precision):
            raise ValueError(f"precision should be one of {get_args(Precision)}; got {precision!r}")
        if not sigma > 0:
            raise ValueError(f"sigma should be positive, in the units of the inputs; got {sigma}")
        self.denoise = denoise
        self.sigma = float(sigma)
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

    @torch.no_grad()
    def noised(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """A draw x_σ = x + σε and the score there, both (B, *)."""
        noise = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
        moved = x + self.sigma * noise
        return moved, self(moved)

    @torch.no_grad()
    def paired(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(s(x + σε) − s(x − σε))/2 for a draw of ε, (B, *) → (B, *); its mean over ε is zero.

        About −Jε/σ, with J = −σ²∇s the directions that the denoiser takes for noise. What it says
        of x itself, whatever the noise, drops out: that can be many times the rest.
        """
        noise = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
        return self.along(x, noise)

    @torch.no_grad()
    def along(self, x: Tensor, v: Tensor) -> Tensor:
        """(s(x + σv) − s(x − σv))/2, about −Jv/σ: what of v is taken for noise, (B, *)."""
        return (self(x + self.sigma * v) - self(x - self.sigma * v)) / 2

    def at(self, *, timestep: int | None = None, sigma: float | None = None) -> "DenoisingScore":
        """The same denoiser at another noise level: a timestep of DDPM's schedule, or σ."""
        score = DenoisingScore(self.denoise, level(timestep, sigma), precision=self.precision)
        for name, network in self.named_children():  # what an adapter holds beside its function
            score.add_module(name, network)
        return score

    def __repr__(self) -> str:
        """One line: the layers of a diffusion model would fill pages."""
        size = sum(parameter.numel() for parameter in self.parameters()) / 1e6
        network = next((type(part).__name__ for part in self.children()), None)
        by = f"{network}, {size:.2f} M parameters" if network else "a function"
        return f"DenoisingScore(sigma={self.sigma:g}, by {by})"


class Scaled(nn.Module):
    """c·s(x): a score of another size, as the paper's c_t makes it. No longer ∇log of anything."""

    def __init__(self, score: DenoisingScore, factor: float) -> None:
        super().__init__()
        self.score = score
        self.factor = float(factor)

    @property
    def sigma(self) -> float:
        """The noise level of the score that is scaled."""
        return self.score.sigma

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) → (B, *), detached."""
        return self.factor * self.score(x).detach()

    def noised(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The noised points as they are, and their scores scaled."""
        moved, s = self.score.noised(x, generator)
        return moved, self.factor * s

    def paired(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Half the difference of two scores, scaled."""
        return self.factor * self.score.paired(x, generator)

    def along(self, x: Tensor, v: Tensor) -> Tensor:
        """The same in a direction that is given, scaled."""
        return self.factor * self.score.along(x, v)

    def extra_repr(self) -> str:
        return f"factor={self.factor:g}"


def normalised(score: DenoisingScore, x: Tensor, reference_sigma: float) -> Scaled:
    """The score times c, with the standard deviation on x that it has at the reference level.

    c_t = std(s_ref)/std(s_t), both measured on x: (N, *). That is the aim the paper states, one
    size of score across timesteps; its formula has the ratio upside down.
    """
    reference = score.at(sigma=reference_sigma)(x).std()
    here = score(x).std()
    if not float(here) > 0:
        raise ValueError("the score is constant on x, so it has no size to normalise")
    return Scaled(score, float(reference / here))
