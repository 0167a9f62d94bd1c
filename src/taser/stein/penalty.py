"""The TASER penalty: Algorithm 1 of the paper."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from taser.probes import Margin, Probe, Probed
from taser.probes.precision import full_precision
from taser.scores import Score

from .asked import asked
from .centre import Centre, centred_square, global_mean
from .checks import check_inputs, check_labels, check_options, check_penalty, check_tensor
from .directions import Distribution
from .field import Directed, Field, points_and_scores
from .guards import Backend, check_structure, untouched_randomness, unwrapped
from .known import Known
from .part import processes, random_part, variance_correction
from .random_source import RandomSource
from .record import Calibration, Record
from .residual import choose_backend, logger, residual_terms
from .reverse import input_gradient
from .shared import SharedPass
from .statistics import Statistics
from .terms import Operator, Terms


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
        :class:`~taser.stein.field.Directed`, which is given the probe's gradient as well.
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
        n = len(r) * processes()  # every process has a loader of its own
        spread = float(r.std()) / n**0.5 if len(r) > 1 else float("nan")
        return Calibration(float(mean), spread, n)

    def _residuals(
        self, model: Callable, x: Tensor, y: Tensor | None, s: Tensor | Directed, shared: SharedPass
    ) -> tuple[Terms, Backend]:
        model, x = unwrapped(model), full_precision(x)
        f = Probed(model, self.probe, y)
        known = self._known.backend_for(model)
        check_labels(y, x)
        check_inputs(x, x.detach() if isinstance(s, Directed) else s, finite=known is None)
        with untouched_randomness(x.device), asked(model, x, shared, self.batchnorm):
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
