"""Scores that know less: whether the geometry of the data matters, or any penalty does."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from taser.shapes import rows_like

from .denoising import DenoisingScore

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
