"""TASER as a term of a loss: where the residual is asked, and with which score."""

from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from taser._tensors import rows_like
from taser.attacks import Model
from taser.attacks._threat import Norm, Threat
from taser.probes import Probe
from taser.scores import Score
from taser.stein import SharedPass, SteinPenalty
from taser.stein._penalty import Directed, Field

At = Literal["clean", "noised", "mixed", "paired", "steepest"]


METHODS: dict[At, str] = {
    "noised": "noised", "mixed": "noised", "paired": "paired", "steepest": "along"
}  # fmt: skip
"""What each form asks of a score."""


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
    """A score that can draw noised points: x ↦ (x + σε, s(x + σε)), pairs of them, and along v."""

    def noised(
        self, x: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def paired(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor: ...

    def along(self, x: Tensor, v: Tensor) -> Tensor: ...


class Taser(nn.Module):
    """The Stein penalty of the clean batch, never of adversarial inputs.

    at
        "clean": at x with s(x), as in the paper; the score may come from a cache. "noised": at
        x + σε with s_σ(x + σε), where E[r] = 0 holds. "mixed": the model at x, the score at
        x + σε: its drift is −(1/σ) ε̂·∇f(x), with ε̂ the part of the noise that the denoiser
        recognises, the part off the data. "paired": half the difference of that at x + σε and at
        x − σε, so that what the denoiser says of x itself, whatever the noise, drops out and
        the drift has the mean zero for every x. "steepest": the same with noise that is not drawn
        but points where f falls the fastest, v = −:func:`steepest`(∇f(x)); the score undoes it, so
        that its drift −(1/σ)·Jv·∇f(x) is how fast f rises by what of that leads off the data. In
        practice residuals have one sign, and their variance would leave out the mean: it needs
        center="none".
    norm
        For "steepest", of the attacks to be feared.

    :meth:`against` makes the form that did best in our studies.
    """

    def __init__(
        self,
        penalty: SteinPenalty,
        score: Score | NoisedScore | None,
        at: At = "clean",
        *,
        norm: Norm = "linf",
    ) -> None:
        super().__init__()
        if at not in get_args(At):
            raise ValueError(f"at should be one of {get_args(At)}; got {at!r}")
        if at != "clean" and not hasattr(score, METHODS[at]):
            raise ValueError(
                f"at={at!r} needs a score that can draw noised points, by a method "
                f"`{METHODS[at]}`, such as Denoiser(…).at(timestep=50); got {type(score).__name__}"
            )
        if at == "steepest" and penalty.centre.kind != "none":
            raise ValueError(
                "at='steepest' has residuals of nearly one sign, whose variance would leave out "
                f"their mean: build the penalty with center='none'; got {penalty.centre.kind!r}"
            )
        if norm not in get_args(Norm):
            raise ValueError(f"norm should be one of {get_args(Norm)}; got {norm!r}")
        self.penalty = penalty
        self.score = score
        self.at: At = at
        self.norm: Norm = norm
        self.ball: Threat | None = None

    @classmethod
    def against(
        cls,
        threat: Threat,
        score: NoisedScore,
        probe: Probe | None = None,
        *,
        fraction: float = 1.0,
        seed: int = 0,
    ) -> "Taser":
        """TASER for attacks inside `threat`: first order, at "steepest", in units of the ball.

        ε²σ²R, with R the mean square of σ⁻¹·(J sign ∇f)·∇f: the square of how far f moves inside
        the ball by what of the steepest step leads off the data. λ from 0.1 to 1 is where to begin.

        >>> import torch, taser
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(8, 1, 8, 8), torch.arange(8)
        >>> score = taser.scores.pretrained("digits").at(timestep=50)
        >>> robust = taser.regularisers.Taser.against(taser.attacks.Threat("linf", 0.15), score)
        >>> loss = torch.nn.functional.cross_entropy(model(x), y) + 0.3 * robust(model, x, y)

        score
            A denoiser at a noise level, such as `Denoiser.load(file).at(timestep=50)`.
        probe, fraction, seed
            Of the :class:`taser.SteinPenalty`.
        """
        if not isinstance(threat, Threat):
            raise TypeError(f"threat should be one such as Threat('linf', 8/255); got {threat!r}")
        if not hasattr(score, "sigma"):
            raise ValueError(
                "Taser.against needs a score at a noise level, such as "
                f"Denoiser(…).at(timestep=50); got {type(score).__name__}"
            )
        penalty = SteinPenalty(
            probe, operator="first_order", center="none", fraction=fraction, seed=seed
        )
        made = cls(penalty, score, "steepest", norm=threat.norm)
        made.ball = threat
        return made

    def extra_repr(self) -> str:
        return f"at={self.at!r}" + (f", against {self.ball}" if self.ball else "")

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
        value = self.penalty(model, x, y, field, shared=shared)
        if self.ball is None:
            return value
        return (self.ball.reach(x.shape[1:]) * self.score.sigma) ** 2 * value  # type: ignore[union-attr]

    def _field(self, generator: torch.Generator | None) -> Field | Directed:
        """x ↦ (the points for the model, the score), asked only for the examples that count."""
        if self.at == "steepest":
            return Directed(lambda x, g: self.score.along(x, -steepest(g, self.norm)))  # type: ignore[union-attr]

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


def steepest(gradient: Tensor, norm: Norm) -> Tensor:
    """Where f grows the fastest for a step of a given size, with root mean square one as noise has.

    gradient: ∇f(x), (B, *), like what is returned: its sign for ℓ∞, √d·∇f/‖∇f‖ for ℓ2.
    """
    if norm == "linf":
        return gradient.sign()
    tiny = torch.finfo(gradient.dtype).tiny
    largest = gradient.flatten(1).abs().amax(1).clamp_min(tiny)
    direction = gradient / rows_like(largest, gradient)  # first, since squares under- and overflow
    size = direction.flatten(1).square().mean(1).sqrt().clamp_min(tiny)
    return direction / rows_like(size, direction)
