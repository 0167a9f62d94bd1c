"""Scores made of other scores: in other coordinates, of another size, without their geometry."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from taser._tensors import rows_like

from ._tweedie import DenoisingScore, NoisedScore, Score, noise_like


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


class Scaled(NoisedScore):
    """c·s(x): a score of another size, as the paper's c_t makes it. No longer ∇log of anything."""

    def __init__(self, score: NoisedScore, factor: float) -> None:
        super().__init__()
        self.score = score
        self.factor = float(factor)

    @property
    def sigma(self) -> float:  # type: ignore[override]
        """The noise level of the score that is scaled."""
        return self.score.sigma

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) → (B, *), detached."""
        return self.factor * self.score(x).detach()

    def extra_repr(self) -> str:
        return f"factor={self.factor:g}"


def normalised(score: DenoisingScore, x: Tensor, reference_sigma: float) -> Scaled:
    """The score times c, with the standard deviation on x that it has at the reference level.

    c_t = std(s_ref)/std(s_t), both measured on x: (N, *). That is the aim the paper states, one
    size of score across timesteps; its formula has the ratio upside down.
    """
    reference, here = score.at(sigma=reference_sigma)(x).std(), score(x).std()
    if not float(here) > 0:
        raise ValueError("the score is constant on x, so it has no size to normalise")
    return Scaled(score, float(reference / here))


Replacement = Literal["shuffled", "white"]


class Replaced(NoisedScore):
    """A control: a score without the geometry of the data, of the same size.

    with_
        "shuffled": each input gets the score of another of the batch; "white": a random direction,
        as long as the input's own score, or in :meth:`along` the direction −v.
    """

    def __init__(self, score: NoisedScore, with_: Replacement) -> None:
        super().__init__()
        if with_ not in get_args(Replacement):
            raise ValueError(f"with_ should be one of {get_args(Replacement)}; got {with_!r}")
        self.score = score
        self.with_: Replacement = with_

    def extra_repr(self) -> str:
        return f"with_={self.with_!r}"

    @property
    def sigma(self) -> float:  # type: ignore[override]
        """The noise level of the score that is replaced."""
        return self.score.sigma

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) → (B, *); random directions come from torch's global generator."""
        return self._replace(self.score(x))

    def noised(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The noised points as they are, and the replaced scores."""
        moved, s = self.score.noised(x, generator)
        return moved, self._replace(s, generator)

    def paired(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Half the difference of two scores, replaced as a whole."""
        return self._replace(self.score.paired(x, generator), generator)

    def along(self, x: Tensor, v: Tensor) -> Tensor:
        """The same along v: another input's, or −v at the length of the input's own."""
        return self._replace(self.score.along(x, v), direction=-v)

    def _replace(
        self,
        s: Tensor,
        generator: torch.Generator | None = None,
        direction: Tensor | None = None,
    ) -> Tensor:
        if self.with_ == "shuffled":
            return s.roll(1, 0)  # batches are in random order: the neighbour is any other input
        direction = noise_like(s, generator) if direction is None else direction
        length = direction.flatten(1).norm(dim=1).clamp_min(torch.finfo(s.dtype).tiny)
        return direction * rows_like(s.flatten(1).norm(dim=1) / length, s)
