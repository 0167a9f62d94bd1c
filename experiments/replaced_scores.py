"""Scores without the geometry of the data, as long as the denoiser's: a control of our studies.

A recipe names them by `regulariser.score=experiments/replaced_scores.py:white`, or `:shuffled`, for
digits, and `:white_fashion_mnist` or `:white_cifar10` for the other data with a shipped denoiser.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from taser.scores import Denoiser, DenoisingScore, pretrained, sigma_of


class Replaced(DenoisingScore):
    """The score of another input of the batch ("shuffled"), or a random direction ("white").

    Each is as long as the input's own score; in :meth:`along`, white is the direction −v.
    """

    def __init__(self, denoiser: Denoiser, sigma: float, kind: Literal["shuffled", "white"]):
        # Through a function, so that a cache of the denoiser's own scores is not taken for these.
        super().__init__(lambda x, level: denoiser(x, level), sigma)
        self.network = denoiser
        self.kind = kind

    @property
    def own(self) -> DenoisingScore:
        """The score that is replaced."""
        score = self.network.at(sigma=self.sigma)
        score.precision = self.precision
        return score

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) → (B, *); random directions come from torch's global generator."""
        return self._replace(self.own(x))

    def noised(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The noised points as they are, and the replaced scores."""
        moved, s = self.own.noised(x, generator)
        return moved, self._replace(s, generator)

    def paired(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Half the difference of two scores, replaced as a whole."""
        return self._replace(self.own.paired(x, generator), generator)

    def along(self, x: Tensor, v: Tensor) -> Tensor:
        """The same along v: another input's, or −v at the length of the input's own."""
        return self._replace(self.own.along(x, v), direction=-v)

    def _replace(
        self, s: Tensor, generator: torch.Generator | None = None, direction: Tensor | None = None
    ) -> Tensor:
        if self.kind == "shuffled":
            return s.roll(1, 0)  # batches are in random order: the neighbour is any other input
        if direction is None:
            direction = torch.randn(s.shape, dtype=s.dtype, device=s.device, generator=generator)
        length = direction.flatten(1).norm(dim=1).clamp_min(torch.finfo(s.dtype).tiny)
        return direction * (s.flatten(1).norm(dim=1) / length).view(-1, *[1] * (s.ndim - 1))


def shuffled(data: str = "digits") -> Replaced:
    """Each input gets the score of another of the batch."""
    return Replaced(pretrained(data), sigma_of(50), "shuffled")


def white(data: str = "digits") -> Replaced:
    """Each input gets a random direction."""
    return Replaced(pretrained(data), sigma_of(50), "white")


white_fashion_mnist = partial(white, "fashion-mnist-large")
white_cifar10 = partial(white, "cifar10")
