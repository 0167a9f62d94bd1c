"""Algorithm 1 of the paper: the mean squared Stein residual about a centre, as a penalty."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args
from weakref import ReferenceType, finalize, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn

from taser._runtime import full_precision, warn_user, world_size
from taser.probes import Margin, Probe, Probed

from ._batchnorm import PassRecorder, SharedPass, Statistics, penalty_mode
from ._checks import (
    BRIGHT,
    Backend,
    Distribution,
    Operator,
    check_choice,
    check_count,
    check_coupling,
    check_gradient,
    check_inputs,
    check_labels,
    check_layers,
    check_options,
)
from ._model_state import any_compiled, check_module, restored_rng, unwrap_ddp
from ._residual import Route, choose_route, logger, residuals

CENTERS = ("batch", "running", "none")


class Regulariser(nn.Module, ABC):
    """A penalty R of a model on a batch, to be added to any loss: loss + λ·R(model, x, y).

    The model is left exactly as it was: modes, running statistics, gradients, `requires_grad`.
    Random numbers come from `generator`, or from a generator of the penalty's own that starts at
    `seed`; the global random state is left alone. A subclass implements :meth:`penalise`.

    every, fraction
        Compute R at each k-th call only, with weight k; and on a random part of the batch (at
        least two examples). Neither changes the expected penalty or its gradient. In evaluation
        mode (`regulariser.eval()`) the whole batch counts at every call.
    batchnorm
        "auto": a BatchNorm in training mode normalises by the statistics of the whole batch, held
        fixed as the input varies, so that R is of the function that the loss trains: those of the
        loss's own forward if it is shared, else of one more. One in eval mode uses its running
        statistics. "running": always those.
    """

    def __init__(
        self, *, every: int = 1, fraction: float = 1.0, batchnorm: Statistics = "auto",
        generator: torch.Generator | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        check_count("every", every)
        check_choice("batchnorm", batchnorm, get_args(Statistics))
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction should lie in (0, 1]; got {fraction}")
        self.every = every
        self.fraction = fraction
        self.batchnorm: Statistics = batchnorm
        self.calls = 0
        self._generator = generator
        self._seed = seed
        self._recorder: PassRecorder | None = None
        self._range_checked = False

    def attach(self, model: Callable) -> Self:
        """Reuse the loss's own forward of this model, where that is right: two forwards less.

        Hooks on the model record its last forwards in training mode. The penalty takes the one of
        the very x that it gets; without one, and after random numbers (dropout), in half precision
        or under torch.compile, it makes its own. A first-order difference is
        one-sided then, from the f(x) of the loss. Loss and penalty share a graph: call `backward`
        once, on their sum. :meth:`release` takes the hooks off, as the end of the regulariser does.
        """
        self.release()
        module = check_module(unwrap_ddp(model))
        if not any_compiled(module):
            self._recorder = PassRecorder(module)
            finalize(self, self._recorder.remove)
        return self

    def release(self) -> None:
        """Take the hooks of :meth:`attach` off the model."""
        if self._recorder is not None:
            self._recorder.remove()
            self._recorder = None

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_recorder": None}  # hooks belong to one model in one process

    def forward(
        self, model: Callable, x: Tensor, y: Tensor | None, s: Tensor | None = None, *,
        shared: SharedPass | None = None,
    ) -> Tensor:  # fmt: skip
        """R, a scalar. x: (B, *); y: (B,) labels, or None if the probe needs none; s: like x.

        s: the score at x, for :class:`SteinPenalty` and form "paper"; the others compute their own.
        shared: a forward pass that the loss made at these weights, see :class:`SharedPass`;
        :meth:`attach` finds it by itself.
        """
        if self.training and self.calls % self.every:
            self._count()
            return x.new_zeros(())
        module = check_module(unwrap_ddp(model))
        check_layers(module)
        check_inputs(x, s, first=False)
        check_labels(y, x)
        if not self._range_checked:
            self.check_range(x)
            self._range_checked = True
        batch = len(x)
        if shared is None and self._recorder is not None:
            shared = self._recorder.shared_pass(module, x)
        shared = shared or SharedPass()
        shared.check(x)
        shared.layers = [(id(part), type(part), part.training) for part in module.modules()]
        with restored_rng(x.device), penalty_mode(module, x, shared, self.batchnorm):
            part, rows = max(2, round(self.fraction * batch)), None
            if self.training and part < batch:
                generator = self.generator_on(x.device)
                rows = torch.randperm(batch, device=x.device, generator=generator)[:part]
                x, y = x[rows], None if y is None else y[rows]
                s, shared = None if s is None else s[rows], shared.rows(rows)
            value = self.penalise(module, full_precision(x.detach()), y, s, shared)
        check_gradient(value, module)
        if rows is not None:
            value = value * self.batch_correction(len(rows), batch)
        if not self.training:
            return value
        self._count()
        return self.every * value  # which makes up for the calls that compute nothing

    def _count(self) -> None:
        """One call more; the loss's next forward is not recorded if no penalty follows it."""
        self.calls += 1
        if self._recorder is not None:
            self._recorder.idle = bool(self.calls % self.every)

    @abstractmethod
    def penalise(
        self, model: nn.Module, x: Tensor, y: Tensor | None, s: Tensor | None, shared: SharedPass
    ) -> Tensor:
        """R of these examples, a scalar; the model is in eval mode already."""

    def check_range(self, x: Tensor) -> None:
        """Warn at the first call if the inputs are in other coordinates than the penalty is for."""
        highest = float(x.detach().max()) if x.ndim == 4 else 0.0
        if highest > BRIGHT:
            warn_user(
                f"the images go up to {highest:g}: λ and scores are for pixels in [0, 1]; divide "
                "bytes by 255, and normalise inside the model"
            )

    def batch_correction(self, n: int, batch: int) -> float:  # noqa: ARG002
        """The factor that makes R of n examples an unbiased estimate of R of the whole batch."""
        return 1.0

    def state(self) -> dict[str, Tensor]:
        """What `taser train` saves: tensors that calls change, without the weights of a score."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore :meth:`state`."""

    def generator_on(self, device: torch.device) -> torch.Generator:
        """The source of random numbers, which has to be on the device of the inputs."""
        if self._generator is None:
            self._generator = torch.Generator(device).manual_seed(self._seed)
        if self._generator.device.type != device.type:
            raise ValueError(
                f"the penalty's generator is on {self._generator.device}, the inputs on {device}: "
                "give a generator for that device, or build the penalty anew"
            )
        return self._generator

    def get_extra_state(self) -> dict[str, Any]:
        """The number of calls and the generator's state, for `state_dict`."""
        source = self._generator
        state = None if source is None else (str(source.device), source.get_state())
        return {"calls": self.calls, "generator": state}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore :meth:`get_extra_state`."""
        self.calls = state["calls"]
        if state["generator"] is not None:
            device, numbers = state["generator"]
            self._generator = self._generator or torch.Generator(device)
            self._generator.set_state(numbers.cpu())


class SteinPenalty(Regulariser):
    """R = (1/B) Σ_i (r_i − D)², the mean squared Stein residual of a probe about a centre D.

    With D the batch mean, the default, R is the variance, as in the paper.

    >>> import torch, taser
    >>> model, x, y = torch.nn.Linear(4, 3), torch.rand(8, 4), torch.arange(8) % 3
    >>> score = taser.scores.Gaussian.fit(x)
    >>> loss = torch.nn.functional.cross_entropy(model(x), y)
    >>> penalty = taser.SteinPenalty()
    >>> loss = loss + 1e-3 * penalty(model, x, y, score(x))

    probe
        (outputs, y) → (B,); the smooth margin by default, `taser.probes.Output()` for regression.
    operator, backend, probes, distribution, step, chunk
        As for :func:`taser.stein_residual`; backend "auto" picks the fastest right one for the
        model, and `penalty.last.backend` says which.
    center, detach_mean, momentum
        D: the "batch" mean, a "running" mean (with `momentum`), a number such as the average of
        `last.mean` over a data set, or "none". `detach_mean` stops the gradient through it. With a
        running mean, `every` and `fraction` are biased by up to 1 − momentum.
    unbiased
        The square of a K-probe estimate is too large by its variance. With two independent sets
        of K probes the product (r − D)(r' − D') is not; it can be negative.
    every, fraction, batchnorm, generator, seed
        As for every :class:`~taser.regularisers.Regulariser`.
    """

    def __init__(
        self, probe: Probe | None = None, *, operator: Operator = "langevin",
        backend: Backend | Literal["auto"] = "auto", probes: int = 1,
        distribution: Distribution = "rademacher", step: float | None = None,
        chunk: int | None = None, center: str | float = "batch", detach_mean: bool = True,
        momentum: float = 0.99, unbiased: bool = False, every: int = 1, fraction: float = 1.0,
        batchnorm: Statistics = "auto",
        generator: torch.Generator | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            every=every, fraction=fraction, batchnorm=batchnorm, generator=generator, seed=seed
        )
        check_options(operator, backend, probes, step, chunk)
        check_choice("distribution", distribution, get_args(Distribution))
        if isinstance(probe, type):
            raise ValueError(f"probe should be a callable (outputs, y) → (B,); got {probe!r}")
        self.probe: Probe = Margin() if probe is None else probe
        self.operator: Operator = operator
        self.backend = backend
        self.probes = probes
        self.distribution: Distribution = distribution
        self.step = step
        self.chunk = chunk
        self.center = Center(center, momentum, detach_mean)
        self.unbiased = unbiased and operator == "langevin"
        self.last: Record | None = None
        self._checked: tuple[ReferenceType[nn.Module], list[tuple], bool, Route] | None = None
        self._shares: bool | None = None  # whether outputs of the loss's pass are f's own

    def __getstate__(self) -> dict:
        return {**super().__getstate__(), "_checked": None}  # a weak reference has no pickle

    def penalise(
        self, model: nn.Module, x: Tensor, y: Tensor | None, s: Tensor | None, shared: SharedPass
    ) -> Tensor:
        """R of these examples, with `last` a record of it."""
        r, backend = self.residuals(model, x, y, s, shared)
        value = centered_square(r, self.center, unbiased=self.unbiased)
        self.last = Record.of(r, value, backend)
        return value

    def batch_correction(self, n: int, batch: int) -> float:
        """(n/(n−1))·((B−1)/B) if the residuals are centred by the mean of the n examples.

        Their sum of squares about their own mean is short by (n−1)/n where the whole batch's is
        short by (B−1)/B. Over several processes the mean is that of all their examples.
        """
        n, batch = n * world_size(), batch * world_size()
        if self.center.kind != "batch" or n == 1:
            return 1.0
        return (n / (n - 1)) * ((batch - 1) / batch)

    def state(self) -> dict[str, Tensor]:
        """The centre."""
        return {"value": self.center.value.clone()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the centre."""
        self.center.value = state["value"].to(self.center.value.device)

    def _route_of(self, model: nn.Module, shared: SharedPass) -> Route | None:
        """The route of a model that was checked as it is now, with gradients if they are wanted."""
        if self._checked is None:
            return None
        last, layers, graph, route = self._checked
        same = last() is model and layers == shared.layers
        return route if same and (graph or not torch.is_grad_enabled()) else None

    def residuals(
        self, model: nn.Module, x: Tensor, y: Tensor | None, s: Tensor | None, shared: SharedPass
    ) -> tuple[Tensor, Backend]:
        """The residuals by probe, (K, B), and the backend; the model is in eval mode already."""
        if s is None:
            raise ValueError("the score s at x is needed: penalty(model, x, y, score(x))")
        f, known = Probed(model, self.probe, y), self._route_of(model, shared)
        check_inputs(x, s, first=known is None)
        route = known or choose_route(f, x, self.operator, self.backend)
        r = residuals(
            f, x, s, route, operator=self.operator,
            probes=self.probes * (2 if self.unbiased else 1), distribution=self.distribution,
            generator=self.generator_on(x.device), step=self.step, chunk=self.chunk,
            check=known is None,
            f_x=self._shared_values(f, x, shared, check=known is None)
            if route.backend == "difference" else None,
        )  # fmt: skip
        if known is None and len(x) > 1:  # one example alone is coupled to no other
            check_coupling(f, x)
            if self.backend == "auto" and (self.last is None or self.last.backend != route.backend):
                logger.info("backend='auto' chose %r for %r", route.backend, self.operator)
            if route.certain:
                self._checked = ref(model), shared.layers, torch.is_grad_enabled(), route
        return r, route.backend

    def _shared_values(
        self, f: Probed, x: Tensor, shared: SharedPass, *, check: bool
    ) -> Tensor | None:
        """f(x) from the pass of the loss, if that computed the same function."""
        if check:
            self._shares = None
        if self._shares is None and shared.outputs is not None:
            self._shares = shared.matches(f, x)
        return shared.values(f, x) if self._shares else None

    def extra_repr(self) -> str:
        shown = {
            "probe": self.probe, "operator": self.operator, "backend": self.backend,
            "probes": self.probes, "center": self.center.kind, "unbiased": self.unbiased,
            "every": self.every, "fraction": self.fraction,
        }  # fmt: skip
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


class Center(nn.Module):
    """D ≈ E[r]: of the batch, running over batches, a number, or none.

    The batch's own mean makes no difference to the gradient whether it is detached or not, since
    Σ(r_i − r̄) = 0. For a running mean it does. Across processes the mean is that of the whole
    global batch and is detached, which gives the gradient of one process with that batch.
    """

    value: Tensor

    def __init__(self, kind: str | float, momentum: float, detach: bool) -> None:
        super().__init__()
        if isinstance(kind, str) or not math.isfinite(kind):
            check_choice("center", kind, (*CENTERS, "a finite number"))
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum should lie in [0, 1); got {momentum}")
        self.kind = kind
        self.momentum = momentum
        self.detach = detach
        constant = float(kind) if not isinstance(kind, str) else float("nan")
        self.register_buffer("value", torch.tensor(constant))

    def forward(self, r: Tensor) -> Tensor:
        """The centre for residuals r, (B,): a scalar."""
        if self.kind == "none":
            return r.new_zeros(())
        if self.kind == "batch":
            return global_mean(r, self.detach)
        if self.kind == "running":
            return self._running(r)
        return self.value.to(r.dtype)

    def _running(self, r: Tensor) -> Tensor:
        mean = global_mean(r, self.detach)
        value = torch.where(self.value.isnan(), mean.detach(), self.value.to(r.dtype))
        if self.training:
            value = self.momentum * value + (1 - self.momentum) * mean
            self.value = value.detach().to(self.value.dtype)
        return value


def centered_square(r: Tensor, center: Center, *, unbiased: bool = False) -> Tensor:
    """R = (1/B) Σ_i (r_i − D)², a scalar, from the residuals by probe, (K, B).

    unbiased: (1/B) Σ_i (r_i − D)(r'_i − D'), r and r' from one half of the probes each.
    """
    mean = r.mean(0)
    if not unbiased or len(r) == 1:
        return (mean - center(mean)).square().mean()
    one, two = (half.mean(0) for half in r.chunk(2))
    if center.kind == "batch":
        return ((one - center(one)) * (two - center(two))).mean()
    value = center(mean)
    return ((one - value) * (two - value)).mean()


def global_mean(r: Tensor, detach: bool) -> Tensor:
    """The mean of r over the batch, and over all processes if there are several."""
    if world_size() == 1:
        mean = r.mean()
        return mean.detach() if detach else mean
    total = torch.stack([r.detach().sum(), r.new_tensor(float(len(r)))])
    dist.all_reduce(total)
    return total[0] / total[1]


@dataclass(frozen=True)
class Record:
    """The last penalty that was computed (not skipped by `every`).

    Each entry but `backend` is a detached scalar tensor. Only reading it as a number synchronises
    an accelerator.

    value: the penalty R; mean, std: of the residuals.
    """

    backend: str
    value: Tensor
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, r: Tensor, value: Tensor, backend: str) -> "Record":
        """Of the residuals of a batch by probe, (K, B), and their penalty."""
        mean = r.detach().mean(0)
        return cls(backend, value.detach(), mean.mean(), mean.std(correction=0))

    def numbers(self) -> dict[str, float]:
        """Value, mean and standard deviation as plain numbers."""
        return {name: float(getattr(self, name)) for name in ("value", "mean", "std")}
