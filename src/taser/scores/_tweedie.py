"""Scores that know less: whether the geometry of the data matters, or any penalty does."""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, Protocol, Self, get_args, runtime_checkable

import torch
from torch import Tensor, nn

from taser._tensors import has_bfloat16, rows_like


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
def _linear_alphas_bar() -> tuple[float, ...]:
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    return tuple((1 - betas).cumprod(0).tolist())


def alpha_bar(timestep: int) -> float:
    """ᾱ_t = Π_{i≤t} (1 − β_i) of DDPM's linear schedule, β from 1e-4 to 0.02 in 1000 steps."""
    if not 0 <= timestep < 1000:
        raise ValueError(f"timestep should lie in 0…999, DDPM's linear schedule; got {timestep}")
    return _linear_alphas_bar()[timestep]


def pixel_sigma(alpha_bar: float) -> float:
    """The noise of ᾱ as a standard deviation on pixels in [0, 1].

    A diffusion model in [-1, 1] sees √ᾱ u + √(1−ᾱ) ε, which is √ᾱ (u + σ_u ε) with
    σ_u = √((1−ᾱ)/ᾱ); a pixel is half as wide as u, so σ = σ_u/2.
    """
    return 0.5 * ((1 - alpha_bar) / alpha_bar) ** 0.5


def sigma_of(timestep: int) -> float:
    """The noise of a timestep as a standard deviation on pixels in [0, 1]. At t = 50: 0.088."""
    return pixel_sigma(alpha_bar(timestep))


def timestep_of(sigma: float) -> int:
    """The timestep whose noise is nearest to `sigma`, in log scale."""
    if not sigma > 0:
        raise ValueError(f"sigma should be positive, in units of pixels in [0, 1]; got {sigma}")
    levels = torch.tensor([sigma_of(t) for t in range(1000)], dtype=torch.float64)
    return int((levels.log() - torch.tensor(sigma).double().log()).abs().argmin())


def level(timestep: int | None, sigma: float | None) -> float:
    """σ from either way of saying it; the reference timestep if neither is said."""
    if timestep is not None and sigma is not None:
        raise ValueError(f"give timestep or sigma, not both; got {timestep} and {sigma}")
    if sigma is None:
        return sigma_of(REFERENCE_TIMESTEP if timestep is None else timestep)
    if not sigma > 0:
        raise ValueError(f"sigma should be positive, in units of pixels in [0, 1]; got {sigma}")
    return float(sigma)


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


class Affine(nn.Module):
    """A score given in u = scale·x + shift, turned into a score in x.

    The chain rule of ∇log p:  s_x(x) = scale · s_u(scale·x + shift). The residual follows it,
    r_x = scale² · r_u for a scalar scale, so a weight λ has a meaning only in named coordinates.

    scale, shift: numbers, or tensors that broadcast against one input (per channel: (C, 1, 1)).

    A score of a diffusion model in [-1, 1], for pixels in [0, 1]: Affine(score, scale=2, shift=-1).
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


Replacement = Literal["shuffled", "white"]


class Replaced(nn.Module):
    """A denoiser's score with its geometry taken away and its size kept.

    with_
        "shuffled": each input gets the score of another of the batch; "white": a random direction,
        as long as the input's own score, or in :meth:`along` the direction that is given.
    """

    def __init__(self, score: DenoisingScore, with_: Replacement) -> None:
        super().__init__()
        if with_ not in get_args(Replacement):
            raise ValueError(f"with_ should be one of {get_args(Replacement)}; got {with_!r}")
        self.score = score
        self.with_: Replacement = with_

    def extra_repr(self) -> str:
        return f"with_={self.with_!r}"

    @property
    def sigma(self) -> float:
        """The noise level of the score that is replaced."""
        return self.score.sigma

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) → (B, *), from torch's own random source."""
        return self._instead(self.score(x), None)

    def noised(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The noised points as they are, and what stands for their scores."""
        moved, s = self.score.noised(x, generator)
        return moved, self._instead(s, generator)

    def paired(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """What stands for half the difference of two scores."""
        return self._instead(self.score.paired(x, generator), generator)

    def along(self, x: Tensor, v: Tensor) -> Tensor:
        """That of another input, or v itself, which knows nothing of the data, as long."""
        s = self.score.along(x, v)
        return s.roll(1, 0) if self.with_ == "shuffled" else _as_long(-v, s)

    def _instead(self, s: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.with_ == "shuffled":
            return s.roll(1, 0)  # batches are in random order: the neighbour is any other input
        noise = torch.randn(s.shape, generator=generator, device=s.device, dtype=s.dtype)
        return _as_long(noise, s)


def _as_long(v: Tensor, s: Tensor) -> Tensor:
    """v with the length of s, row by row: (B, *)."""
    length = v.flatten(1).norm(dim=1).clamp_min(torch.finfo(v.dtype).tiny)
    return v * rows_like(s.flatten(1).norm(dim=1) / length, s)
