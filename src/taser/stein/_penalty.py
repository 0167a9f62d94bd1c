"""The TASER penalty: Algorithm 1 of the paper."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal
from weakref import ReferenceType, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn

from taser._distributed import variance_correction, world_size
from taser._random import random_part
from taser._tensors import full_precision
from taser.probes import Margin, Probe, Probed
from taser.scores import Score

from ._backends import Distribution, Operator, Terms, input_gradient
from ._batchnorm import SharedPass, Statistics, asked
from ._checks import check_inputs, check_labels, check_options, check_penalty, check_tensor
from ._layer_checks import Backend, check_structure
from ._model_state import restored_rng, unwrap_ddp
from ._residual import choose_backend, logger, residual_terms


class Centre(nn.Module):
    """D_f ≈ E[r]: of the batch, running over batches, calibrated once, a number, or none.

    The batch's own mean makes no difference to the gradient whether it is detached or not, since
    Σ(r_i − r̄) = 0. For a running mean it does. Across processes the mean is that of the whole
    global batch and is detached, which gives the gradient of one process with that batch.
    """

    value: Tensor

    def __init__(self, kind: str | float, momentum: float, detach: bool) -> None:
        super().__init__()
        self.kind = kind
        self.momentum = momentum
        self.detach = detach
        constant = float(kind) if not isinstance(kind, str) else float("nan")
        self.register_buffer("value", torch.tensor(constant))

    @property
    def of_batch(self) -> bool:
        """Whether the centre is estimated from the very examples that it centres."""
        return self.kind == "batch"

    def forward(self, r: Tensor) -> Tensor:
        """The centre for residuals r, (B,): a scalar."""
        if self.kind == "none":
            return r.new_zeros(())
        if self.kind == "batch":
            return global_mean(r, self.detach)
        if self.kind == "running":
            return self._running(r)
        if self.kind == "calibrated" and bool(self.value.isnan()):
            raise RuntimeError(
                "center='calibrated' has no constant yet: call "
                "penalty.calibrate(model, loader, score) first, or load a state that has one"
            )
        return self.value.to(r.dtype)

    def _running(self, r: Tensor) -> Tensor:
        mean = global_mean(r, self.detach)
        if not self.training:
            return torch.where(self.value.isnan(), mean, self.value.to(r.dtype))
        before = torch.where(self.value.isnan(), mean.detach(), self.value.to(r.dtype))
        now = self.momentum * before + (1 - self.momentum) * mean
        self.value = now.detach().to(self.value.dtype)
        return now


def centred_square(terms: Terms, centre: Centre, *, unbiased: bool = False) -> Tensor:
    """R = (1/B) Σ_i (r_i − D)², a scalar.

    unbiased: (1/B) Σ_i (r_i − D)(r'_i − D'), r and r' from one half of the probes each.
    """
    if not unbiased or len(terms.per_probe) == 1:
        r = terms.residual
        return (r - centre(r)).square().mean()
    one, two = (half.mean(0) for half in terms.per_probe.chunk(2))
    if centre.of_batch:
        return ((one - centre(one)) * (two - centre(two))).mean()
    value = centre(terms.residual)
    return ((one - value) * (two - value)).mean()


def global_mean(r: Tensor, detach: bool) -> Tensor:
    """The mean of r over the batch, and over all processes if there are several."""
    if world_size() == 1:
        mean = r.mean()
        return mean.detach() if detach else mean
    total = torch.stack([r.detach().sum(), r.new_tensor(float(len(r)))])
    dist.all_reduce(total)
    return total[0] / total[1]


class RandomSource:
    """A generator that is made on the device of its first use, unless one was given."""

    def __init__(self, generator: torch.Generator | None, seed: int) -> None:
        self.generator = generator
        self.seed = seed

    def on(self, device: torch.device) -> torch.Generator:
        """The generator, which has to live on this kind of device."""
        if self.generator is None:
            self.generator = torch.Generator(device).manual_seed(self.seed)
        if self.generator.device.type != device.type:
            raise ValueError(
                f"the penalty's generator is on {self.generator.device}, the inputs on {device}: "
                "give a generator for that device, or build the penalty anew"
            )
        return self.generator

    def state(self) -> tuple[str, torch.Tensor] | None:
        """What draws the same numbers again."""
        source = self.generator
        return None if source is None else (str(source.device), source.get_state())

    def restore(self, state: Any) -> None:
        """Go on from a :meth:`state`."""
        if state is not None:
            device, numbers = state
            self.generator = self.generator or torch.Generator(device)
            self.generator.set_state(numbers.cpu())


@dataclass(frozen=True)
class Record:
    """The last penalty that was really computed (not skipped by `every`).

    Each entry but `backend` is a detached scalar tensor, or None where it was not computed;
    reading it as a number is what makes an accelerator wait, so nothing here does.

    value: the penalty R; mean, std: of the residuals; laplacian_std, drift_std: of the terms Δf
    and s·∇f apart (with the difference backend only if the penalty was built with `terms=True`).
    """

    backend: str
    value: Tensor
    mean: Tensor
    std: Tensor
    laplacian_std: Tensor | None
    drift_std: Tensor | None

    @classmethod
    @torch.no_grad()
    def of(cls, terms: Terms, value: Tensor, backend: str) -> "Record":
        """Of the residuals of a batch and their penalty."""

        def spread(term: Tensor | None) -> Tensor | None:
            return None if term is None else term.std(correction=0)

        r = terms.residual
        return cls(
            backend, value.detach(), r.mean(), r.std(correction=0), spread(terms.laplacian),
            spread(terms.drift),
        )  # fmt: skip

    def share(self, task_loss: Tensor | float, weight: float) -> float:
        """λR as a share of the whole loss, λR / (task + λR)."""
        part = weight * self.value.item()
        return part / (torch.as_tensor(task_loss).item() + part)

    def numbers(self) -> dict[str, float]:
        """Every entry that is known, as a plain number."""
        entries = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: float(e) for name, e in entries.items() if isinstance(e, torch.Tensor)}


@dataclass(frozen=True)
class Calibration:
    """The mean residual over n examples, and its standard error."""

    mean: float
    stderr: float
    n: int


class Known:
    """The backend that serves the last model, and whether passes of the loss can be shared."""

    def __init__(self) -> None:
        self._model: ReferenceType[nn.Module] | None = None
        self._modes: list[bool] = []
        self._graph = False
        self._backend: Backend | None = None
        self._shares: bool | None = None

    def backend_for(self, model: Callable) -> Backend | None:
        """The backend, if this model was looked at in its modes, with a graph if there is one."""
        last = None if self._model is None else self._model()
        if last is None or last is not model or self._modes != _modes(last):
            return None
        enough = self._graph or not torch.is_grad_enabled()
        return self._backend if enough else None

    def keep(self, model: Callable, backend: Backend) -> None:
        """Remember a model that was looked at; only a weak reference to it."""
        if isinstance(model, nn.Module):
            self._model, self._modes = ref(model), _modes(model)
            self._graph, self._backend = torch.is_grad_enabled(), backend

    def centre(self, f: Probed, x: Tensor, shared: SharedPass, *, look: bool) -> Tensor | None:
        """f(x) from the pass of the loss, if that asked the same function."""
        if look:
            self._shares = None  # what held of another model, or in another mode, need not hold
        if self._shares is None and shared.outputs is not None:
            self._shares = shared.agrees(f, x)
        return shared.values(f, x) if self._shares else None

    def __getstate__(self) -> dict:
        return Known().__dict__  # a weak reference cannot be pickled


def _modes(model: nn.Module) -> list[bool]:
    """Of every module: with dropout in training mode the loss asks another function."""
    return [module.training for module in model.modules()]


Field = Callable[[Tensor], tuple[Tensor, Tensor]]
"""x ↦ (the points at which the model is asked, the scores), each (B, *)."""


@dataclass(frozen=True)
class Directed:
    """A score that is asked in a direction which the probe f itself gives, for the model at x.

    scores: (x, ∇f(x)) ↦ s, each (B, *).
    """

    scores: Callable[[Tensor, Tensor], Tensor]


def points_and_scores(field: Field, x: Tensor) -> tuple[Tensor, Tensor]:
    """field(x), which has to be a pair: a score itself is not such a function."""
    found = field(x)
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(
            "s should be a tensor like x, such as score(x), or a function that gives points and "
            f"scores; got {type(field).__name__}, which gives {type(found).__name__}"
        )
    return found


class SteinPenalty(nn.Module):
    """R = (1/B) Σ_i (r_i − D)², the variance of the Stein residual of a probe of a model.

    >>> import torch, taser
    >>> model, x, y = torch.nn.Linear(4, 3), torch.rand(8, 4), torch.arange(8) % 3
    >>> score = taser.scores.Gaussian.fit(x)
    >>> loss = torch.nn.functional.cross_entropy(model(x), y)
    >>> penalty = taser.SteinPenalty()
    >>> loss = loss + 1e-3 * penalty(model, x, y, score(x))

    The model is left exactly as it was: modes, running statistics, gradients, `requires_grad`.
    Random directions come from `generator`, or from one of the penalty's own that starts at
    `seed`; the global random state is not touched. In evaluation mode (`penalty.eval()`) the
    whole batch counts at every call.

    probe
        (outputs, y) → (B,); the smooth margin by default, `taser.probes.Output()` for regression.
    operator, backend, probes, distribution, step, chunk
        As for :func:`taser.stein_residual`; backend "auto" picks the fastest right one for the
        model, and `penalty.last.backend` says which.
    center, detach_mean, momentum
        D: the "batch" mean, a "running" mean (with `momentum`), a constant that
        :meth:`calibrate` estimates ("calibrated"), a number, or "none". `detach_mean` stops the
        gradient through it.
    unbiased
        The square of a K-probe estimate is too large by its variance. With two independent sets
        of K probes the product (r − D)(r' − D') is not; it can be negative.
    every, fraction
        Compute at each k-th call only, with weight k; and on a random part of the batch (at least
        two examples). Both leave the expected penalty and gradient as they were; with a running
        centre, which follows the very residuals it centres, up to 1 − momentum.
    terms
        Tell the two terms apart in `last` with the difference backend, for one more forward.
    batchnorm
        "auto": a BatchNorm in training mode normalises by the batch's own statistics, held fixed
        as the input varies (one more forward), so that the penalty is of the function that the
        loss trains; one in evaluation mode by its running ones. "running": always those.
    """

    def __init__(
        self,
        probe: Probe | None = None,
        *,
        operator: Operator = "langevin",
        backend: Backend | Literal["auto"] = "auto",
        probes: int = 1,
        distribution: Distribution = "rademacher",
        step: float | None = None,
        chunk: int | None = None,
        center: str | float = "batch",
        detach_mean: bool = True,
        momentum: float = 0.99,
        unbiased: bool = False,
        every: int = 1,
        fraction: float = 1.0,
        terms: bool = False,
        batchnorm: Statistics = "auto",
        generator: torch.Generator | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_options(operator, backend, probes, step, chunk)
        check_penalty(
            probe=probe, distribution=distribution, center=center, momentum=momentum, every=every,
            fraction=fraction, batchnorm=batchnorm, generator=generator,
        )  # fmt: skip
        self.probe: Probe = Margin() if probe is None else probe
        self.operator: Operator = operator
        self.backend = backend
        self.probes = probes
        self.distribution: Distribution = distribution
        self.step = step
        self.chunk = chunk
        self.centre = Centre(center, momentum, detach_mean)
        self.unbiased = unbiased and operator == "langevin"
        self.every = every
        self.fraction = fraction
        self.terms = terms
        self.batchnorm: Statistics = batchnorm
        self.calls = 0
        self.last: Record | None = None
        self._source = RandomSource(generator, seed)
        self._known = Known()

    def forward(
        self,
        model: Callable,
        x: Tensor,
        y: Tensor | None,
        s: Tensor | Field | Directed,
        *,
        shared: SharedPass | None = None,
    ) -> Tensor:
        """R of a batch. x: (B, *); y: (B,) labels, or None if the probe needs none; s: like x.

        Instead of a tensor, s may be a function x ↦ (points, scores), which is asked only for the
        examples that count: a network of scores then rests in the calls that compute nothing; or a
        :class:`~taser.stein._penalty.Directed`, which is given the probe's gradient as well.
        shared: a forward pass that the loss made at these weights, see :class:`SharedPass`.
        """
        if self.training and self.calls % self.every:
            self.calls += 1
            return x.new_zeros(())
        check_tensor("x", x)
        size, shared = len(x), shared or SharedPass()
        shared.check(x)
        rows = (
            random_part(size, self.fraction, self._source.on(x.device)) if self.training else None
        )
        if rows is not None:
            check_labels(y, x)
            if not callable(s) and not isinstance(s, Directed):
                check_inputs(x, s, finite=False)
                s = s[rows]
            x, y = x[rows], None if y is None else y[rows]
            shared = shared.rows(rows)
        if callable(s):
            here = x
            x, s = points_and_scores(s, here)
            shared = shared if x is here else shared.elsewhere()
        terms, backend = self._residuals(model, x, y, s, shared)
        value = centred_square(terms, self.centre, unbiased=self.unbiased)
        if rows is not None and self.centre.of_batch:
            value = value * variance_correction(len(rows), size)
        self.last = Record.of(terms, value, backend)
        if not self.training:
            return value
        self.calls += 1
        return self.every * value  # which makes up for the calls that compute nothing

    @torch.no_grad()
    def calibrate(self, model: Callable, loader: Iterable[Any], score: Score) -> Calibration:
        """Estimate the constant D = E[r] over batches (x, y, …), for center="calibrated"."""
        if self.centre.kind != "calibrated":
            raise ValueError(
                f"this penalty has center={self.centre.kind!r} and would not use the constant; "
                "build it with center='calibrated'"
            )
        parts = [
            self._residuals(model, x, y, score(x), SharedPass())[0].residual for x, y, *_ in loader
        ]
        if not parts:
            raise ValueError("the loader gave no batch to calibrate on")
        r = torch.cat(parts)
        mean = global_mean(r, detach=True)
        self.centre.value = mean.to(self.centre.value.dtype)
        n = len(r) * world_size()  # every process has a loader of its own
        spread = float(r.std()) / n**0.5 if len(r) > 1 else float("nan")
        return Calibration(float(mean), spread, n)

    def _residuals(
        self, model: Callable, x: Tensor, y: Tensor | None, s: Tensor | Directed, shared: SharedPass
    ) -> tuple[Terms, Backend]:
        model, x = unwrap_ddp(model), full_precision(x)
        f = Probed(model, self.probe, y)
        known = self._known.backend_for(model)
        check_labels(y, x)
        check_inputs(x, x.detach() if isinstance(s, Directed) else s, finite=known is None)
        with restored_rng(x.device), asked(model, x, shared, self.batchnorm):
            if isinstance(s, Directed):
                if known is None:
                    check_structure(model, "difference")
                s = s.scores(x, input_gradient(f, x))
                check_inputs(x, s, finite=known is None)
            backend, certain = (known, True) if known else self._choose(f, x)
            terms = residual_terms(
                f, x, s, operator=self.operator, backend=backend,
                probes=self.probes * (2 if self.unbiased else 1), distribution=self.distribution,
                generator=self._source.on(x.device), step=self.step, chunk=self.chunk,
                separate=self.terms, check=known is None,
                centre=self._known.centre(f, x, shared, look=known is None)
                if backend == "difference" else None,
            )  # fmt: skip
        # One example alone cannot show what couples examples.
        if certain and len(x) > 1:
            self._known.keep(model, backend)
        return terms, backend

    def _choose(self, f: Probed, x: Tensor) -> tuple[Backend, bool]:
        if self.backend != "auto":
            return self.backend, True
        backend, certain = choose_backend(f, x, self.operator)
        if self.last is None or self.last.backend != backend:
            logger.info("backend='auto' chose %r for the %s operator", backend, self.operator)
        return backend, certain

    def get_extra_state(self) -> dict[str, Any]:
        """What a resumed run needs to draw the same directions at the same calls."""
        return {"calls": self.calls, "generator": self._source.state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore :meth:`get_extra_state`."""
        self.calls = state["calls"]
        self._source.restore(state["generator"])

    def extra_repr(self) -> str:
        shown = {
            "probe": self.probe, "operator": self.operator, "backend": self.backend,
            "probes": self.probes, "center": self.centre.kind, "unbiased": self.unbiased,
            "every": self.every, "fraction": self.fraction,
        }  # fmt: skip
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())
