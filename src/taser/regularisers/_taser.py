"""TASER and its forms, which fix the points, the score and the unit of λ."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from taser._runtime import rows_like, warn_user
from taser.attacks import Threat
from taser.probes import Probe, Probed
from taser.stein import SharedPass, SteinPenalty
from taser.stein._batchnorm import Statistics
from taser.stein._checks import BRIGHT, Backend, Operator
from taser.stein._residual import probe_gradient

SLACK = 0.01  # share of the range by which rounding and augmentation may exceed it
FormName = Literal["steepest", "paired", "noised", "mixed", "paper"]


@dataclass(frozen=True)
class Form:
    """What a form fixes, and its defaults."""

    operator: Operator
    center: Literal["batch", "none"]
    method: str | None  # the method of the score that it calls
    fraction: float = 1.0  # default of Taser's `fraction`
    every: int = 1  # default of Taser's `every`


FORMS: dict[FormName, Form] = {
    "steepest": Form("first_order", "none", "along", fraction=1 / 3, every=2),
    "paired": Form("first_order", "batch", "paired"),
    "mixed": Form("first_order", "batch", "noised"),
    "noised": Form("langevin", "batch", "noised"),
    "paper": Form("langevin", "batch", None),
}


class Taser(SteinPenalty):
    """TASER: a Stein penalty of the clean batch, in one of five forms.

    >>> import torch, taser
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    >>> x, y = torch.rand(8, 1, 8, 8), torch.arange(8)
    >>> score = taser.scores.pretrained("digits").at(timestep=50)
    >>> robust = taser.Taser(score, threat=taser.Threat("linf", 0.15))
    >>> loss = torch.nn.functional.cross_entropy(model(x), y) + 0.3 * robust(model, x, y)

    Write σ for the score's noise level, z for a standard normal draw, and
    s(x; v) = (s(x + σv) − s(x − σv))/2 ≈ −Jv/σ, with J the Jacobian of the denoiser's noise
    estimate: Jv is the component of v that the denoiser removes as noise, off the data. A form
    fixes the operator, the points, the centre and the unit of λ together.

    form
        "steepest" (default): s(x; −u)·∇f(x) with u the direction in which f rises fastest inside
        the threat, of root mean square one: R ≈ mean (ε Ju·∇f)² with ε = `threat.rms_epsilon`, so
        a margin that moves by one inside the ball costs one. λ from 0.1 to 1 is a good start.
        "paired": s(x; z)·∇f(x), whose mean over z is zero for every x; in units of the noise, σ²R.
        "mixed": s(x + σz)·∇f(x), in units of the noise.
        "noised": the full residual at x + σz, where E[r] = 0 holds exactly; in units of the noise.
        "paper": the full residual Δf + s·∇f at x, Algorithm 1. Its unit is that of a diffusion
        model's coordinates [-1, 1] if the inputs are pixels (R/16 for pixels in [0, 1]), and that
        of x for a score in closed form.
    threat
        Norm and ε that the network should resist, needed by "steepest", and the range of inputs.
    normalisation
        (mean, std) of inputs that the loop normalises, (u − mean)/std, numbers or one a channel.
        Score, threat, range and λ then refer to u, as if the model normalised its inputs itself.
    probe, backend, probes, step, unbiased, every, fraction, batchnorm, generator, seed
        As for :class:`taser.SteinPenalty`; probes and unbiased concern Δf, so "noised" and "paper".
        By default "steepest" takes a random third of the batch in each second step, with weight
        two, and is zero in the others.
    operator, center
        Replace the form's operator and centre, for studies.
    """

    def __init__(
        self, score: Any, *, threat: Threat | None = None, form: FormName = "steepest",
        probe: Probe | None = None, operator: Operator | None = None,
        center: str | float | None = None, backend: Literal["auto", Backend] = "auto",
        probes: int = 1, step: float | None = None, unbiased: bool = False,
        every: int | None = None, fraction: float | None = None, batchnorm: Statistics = "auto",
        normalisation: tuple[Any, Any] | None = None,
        generator: torch.Generator | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        if form not in FORMS:
            raise ValueError(f"form should be one of {get_args(FormName)}; got {form!r}")
        fixed = FORMS[form]
        super().__init__(
            probe, operator=operator or fixed.operator, backend=backend, probes=probes, step=step,
            center=fixed.center if center is None else center, unbiased=unbiased,
            every=fixed.every if every is None else every,
            fraction=fixed.fraction if fraction is None else fraction, batchnorm=batchnorm,
            generator=generator, seed=seed,
        )  # fmt: skip
        if not isinstance(threat, Threat | None):
            raise TypeError(f"threat should be a Threat, as Threat('linf', 8/255); got {threat!r}")
        _check_score(score, form)
        if form == "steepest" and threat is None:
            raise ValueError(
                "form='steepest' needs the threat that the network should resist, such as "
                "threat=taser.Threat('linf', 8/255)"
            )
        self.score = score
        self.form: FormName = form
        self.threat = threat
        self.normalisation = None if normalisation is None else Normalisation(normalisation)

    def penalise(
        self, model: nn.Module, x: Tensor, y: Tensor | None, s: Tensor | None, shared: SharedPass
    ) -> Tensor:
        """R of these examples in the form's unit. s: cached scores at x, for form="paper"."""
        if s is not None and self.form != "paper":
            raise ValueError(f"form={self.form!r} computes its own score: call it without s")
        if self.normalisation is not None:
            x, model = self.normalisation.to_raw(x), self.normalisation.wrap(model)
        if s is None:
            x, s, shared = self._points_and_scores(model, x, y, shared)
        return self.weight_scale(x) * super().penalise(model, x, y, s, shared)

    def _points_and_scores(
        self, model: nn.Module, x: Tensor, y: Tensor | None, shared: SharedPass
    ) -> tuple[Tensor, Tensor, SharedPass]:
        """The points at which the model is evaluated, the scores there, and the shared pass."""
        generator = self.generator_on(x.device)
        if self.form == "paper":
            return x, self.score(x), shared
        if self.form == "paired":
            return x, self.score.paired(x, generator), shared
        if self.form == "steepest":
            assert self.threat is not None
            _, gradient = probe_gradient(Probed(model, self.probe, y), x)
            return x, self.score.along(x, -steepest(gradient, self.threat)), shared
        noised, s = self.score.noised(x, generator)
        return (x, s, shared) if self.form == "mixed" else (noised, s, shared.rows(None))

    def weight_scale(self, x: Tensor) -> float:
        """Factor that makes λ independent of ε, σ or pixel scale. x: inputs, (B, *)."""
        if self.form == "steepest":
            assert self.threat is not None
            return (self.threat.rms_epsilon(x.shape[1:]) * self.score.sigma) ** 2
        if self.form != "paper":
            return float(self.score.sigma) ** 2
        low, high = self._box(x)
        if not hasattr(self.score, "sigma") or low is None or high is None:
            return 1.0
        return ((high - low) / 2) ** 4  # u = a x + b has r_u = r_x/a², and a = 2/(high − low)

    def check_range(self, x: Tensor) -> None:
        """Warn of images outside the range of score and threat, or with channels last."""
        x = x.detach() if self.normalisation is None else self.normalisation.to_raw(x.detach())
        low, high = self._box(x)
        if x.ndim == 4 and x.shape[1] > 4 >= x.shape[3]:
            warn_user(
                f"inputs of shape {tuple(x.shape)} look like images with channels last; the score "
                "takes (B, C, H, W): x.permute(0, 3, 1, 2)"
            )
        elif low is not None and high is not None:
            lowest, highest = float(x.min()), float(x.max())
            if max(low - lowest, highest - high) <= SLACK * (high - low):
                return
            advice = "(mean, std), with the numbers by which the loop normalises them, or give the "
            advice += "threat their range (None for a table)"
            if lowest >= low and highest > BRIGHT * high:
                advice = "(0, 1 / 255) for bytes"
            found = f"inputs from {lowest:.3g} to {highest:.3g} are outside the range"
            warn_user(
                f"{found} [{low:g}, {high:g}] of score and threat: pass normalisation={advice}"
            )

    def _box(self, x: Tensor) -> tuple[float | None, float | None]:
        """The range of inputs: the threat's, else [0, 1] for images."""
        if self.threat is not None:
            own = self.threat.low, self.threat.high
            return own if all(isinstance(end, float) for end in own) else (None, None)
        return (0.0, 1.0) if x.ndim == 4 else (None, None)

    def extra_repr(self) -> str:
        return f"form={self.form!r}" + (f", threat={self.threat}" if self.threat else "")


class Normalisation:
    """Converts normalised inputs x = (u − mean)/std to raw inputs u and back. (B, *) → (B, *)."""

    def __init__(self, mean_and_std: tuple[Any, Any]) -> None:
        try:
            self.mean, self.std = (torch.as_tensor(n, dtype=torch.float) for n in mean_and_std)
            right = bool((self.std > 0).all() and (self.mean + self.std).isfinite().all())
        except (TypeError, ValueError, RuntimeError):
            right = False
        if not right:
            raise ValueError(
                "normalisation should be (mean, std), numbers or one a channel, std positive; got "
                f"{mean_and_std}"
            )
        self._model: tuple[nn.Module, nn.Module] | None = None  # in a tuple: no submodule

    def to_raw(self, x: Tensor) -> Tensor:
        """u = std·x + mean."""
        return self._fitted(self.std, x) * x + self._fitted(self.mean, x)

    def to_normalised(self, u: Tensor) -> Tensor:
        """x = (u − mean)/std."""
        return (u - self._fitted(self.mean, u)) / self._fitted(self.std, u)

    def _fitted(self, numbers: Tensor, x: Tensor) -> Tensor:
        channels = numbers.ndim == 1 and len(numbers) > 1
        shaped = numbers.view(-1, *[1] * (x.ndim - 2)) if channels else numbers
        try:
            return shaped.to(x).expand(x.shape[1:])
        except RuntimeError:
            given = f"{len(numbers)} channels" if channels else f"shape {tuple(numbers.shape)}"
            raise ValueError(
                f"normalisation has {given}, which does not match inputs of shape {tuple(x.shape)}"
            ) from None

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as a function of u; cached, so that one model gives one object."""
        if self._model is None or self._model[0] is not model:
            self._model = model, _NormalisedModel(model, self)
        return self._model[1]

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_model": None}  # the model does not belong to the regulariser


class _NormalisedModel(nn.Module):
    """u ↦ model((u − mean)/std); error messages name the layers of `model`."""

    def __init__(self, model: nn.Module, normalisation: Normalisation) -> None:
        super().__init__()
        self.model, self.normalisation = model, normalisation

    def forward(self, u: Tensor) -> Tensor:
        return self.model(self.normalisation.to_normalised(u))

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        return self.model.named_modules(*args, **kwargs)


def _check_score(score: Any, form: FormName) -> None:
    method = FORMS[form].method
    if method is None and not callable(score):
        raise ValueError(f"form='paper' needs a score model, x ↦ s(x); got {type(score).__name__}")
    if method is not None and not (hasattr(score, method) and hasattr(score, "sigma")):
        raise ValueError(
            f"form={form!r} needs a score at a noise level, such as Denoiser.load(file)."
            f"at(timestep=50); got {type(score).__name__}"
        )


def steepest(gradient: Tensor, threat: Threat) -> Tensor:
    """The direction in which f rises fastest in the threat, with root mean square one like noise.

    gradient: ∇f(x), (B, *) → (B, *): its sign for ℓ∞, √d·∇f/‖∇f‖ for ℓ2.
    """
    tiny = torch.finfo(gradient.dtype).tiny
    largest = gradient.flatten(1).abs().amax(1).clamp_min(tiny)
    direction = gradient / rows_like(largest, gradient)  # first, since squares under- and overflow
    return threat.ascent(direction) * (threat.epsilon / threat.rms_epsilon(gradient.shape[1:]))
