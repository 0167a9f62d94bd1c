"""TASER as a term of a loss: where the residual is asked, and with which score."""

from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from taser.scores import Score
from taser.stein import SharedPass, SteinPenalty
from taser.stein.field import Field

from .objective import Model

At = Literal["clean", "noised", "mixed", "paired"]


class Regulariser(Protocol):
    """A penalty on a model at the clean batch: TASER, or what it is compared with."""

    def __call__(
        self,
        model: Model,
        x: Tensor,
        y: Tensor | None,
        s: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        shared: SharedPass | None = None,
    ) -> Tensor: ...


class NoisedScore(Protocol):
    """A score that can draw noised points: x ↦ (x + σε, s(x + σε)), and pairs of them."""

    def noised(
        self, x: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def paired(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor: ...


class Taser(nn.Module):
    """The Stein penalty of the clean batch, never of adversarial inputs.

    at
        "clean": at x with s(x), as in the paper; the score may come from a cache. "noised": at
        x + σε with s_σ(x + σε), where E[r] = 0 holds. "mixed": the model at x, the score at
        x + σε: its drift is −(1/σ) ε̂·∇f(x), with ε̂ the part of the noise that the denoiser
        recognises, the part off the data. "paired": half the difference of that at x + σε and at
        x − σε, so that what the denoiser says of x itself, whatever the noise, drops out and
        the drift has the mean zero for every x.
    """

    def __init__(
        self, penalty: SteinPenalty, score: Score | NoisedScore | None, at: At = "clean"
    ) -> None:
        super().__init__()
        if at not in get_args(At):
            raise ValueError(f"at should be one of {get_args(At)}; got {at!r}")
        if at != "clean" and not hasattr(score, "paired" if at == "paired" else "noised"):
            raise ValueError(
                f"at={at!r} needs a score that can draw noised points, such as "
                f"Denoiser(…).at(timestep=50); got {type(score).__name__}"
            )
        self.penalty = penalty
        self.score = score
        self.at: At = at

    def extra_repr(self) -> str:
        return f"at={self.at!r}"

    def forward(
        self,
        model: Model,
        x: Tensor,
        y: Tensor | None,
        s: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        shared: SharedPass | None = None,
    ) -> Tensor:
        """R of the batch, a scalar. s: cached scores at x, like x, for at="clean".

        shared: a pass of the loss at x, or with its statistics alone at adversarial points.
        """
        field = s if self.at == "clean" and s is not None else self._field(generator)
        return self.penalty(model, x, y, field, shared=shared)

    def _field(self, generator: torch.Generator | None) -> Field:
        """x ↦ (the points for the model, the score), asked only for the examples that count."""

        def field(x: Tensor) -> tuple[Tensor, Tensor]:
            if self.at == "clean":
                if not callable(self.score):
                    raise ValueError("at='clean' needs a score model, or s with each batch")
                return x, self.score(x)
            score: NoisedScore = self.score  # type: ignore[assignment]  # as __init__ checked
            if self.at == "paired":
                return x, score.paired(x, generator)
            moved, s = score.noised(x, generator)
            return (x if self.at == "mixed" else moved), s

        return field
