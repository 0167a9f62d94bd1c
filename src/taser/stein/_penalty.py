"""Regulariser, the base class of every penalty; and SteinPenalty, Algorithm 1 of the paper."""

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
from ._residual import BackendChoice, choose_backend, logger, residuals

CenterName = Literal["batch", "running", "none"]


class Regulariser(nn.Module, ABC):
    """A penalty R of a model on a batch, to be added to any loss: loss + λ·R(model, x, y).

    The model is left exactly as it was: modes, running statistics, gradients, `requires_grad`.
    Random numbers come from `generator`, or from a new generator with this `seed`; the global
    random state is left alone. A subclass implements :meth:`penalise`.

    every, fraction
        Compute R at each k-th call only, with weight k; and on a random part of the batch (at
        least two examples). Neither changes the expected penalty or its gradient. In eval mode
        (`regulariser.eval()`) the whole batch counts at every call.
    batchnorm
        "auto": a BatchNorm in training mode uses the statistics of a training forward, held
        constant in the input: the loss's forward if available, else one extra forward. A BatchNorm
        in eval mode uses running statistics. "running": running statistics always.
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
        self._layers: list[tuple] = []  # the model's submodules and their modes in the loss

    def attach(self, model: Callable) -> Self:
        """Reuse the loss's forward of the same x when possible. This saves two forward passes.

        Hooks on the model record its last forwards in training mode. If none is of this very x (PGD
        training evaluates only x_adv), or if it drew random numbers (dropout), ran in half
        precision or under torch.compile, the penalty makes its own forward of x. With a shared
        f(x) a first-order difference is one-sided. Loss and penalty share a graph: call `backward`
        once, on their sum. :meth:`release` removes the hooks, as deleting the regulariser does.
        """
        self.release()
        module = check_module(unwrap_ddp(model))
        if not any_compiled(module):
            self._recorder = PassRecorder(module)
            finalize(self, self._recorder.remove)
        return self

    def release(self) -> None:
        """Remove the hooks of :meth:`attach`."""
        if self._recorder is not None:
            self._recorder.remove()
            self._recorder = None

    def __getstate__(self) -> dict:
        # Hooks and layers belong to one model in one process.
        return {**self.__dict__, "_recorder": None, "_layers": []}

    def forward(
        self, model: Callable, x: Tensor, y: Tensor | None, s: Tensor | None = None, *,
        shared: SharedPass | None = None,
    ) -> Tensor:  # fmt: skip
        """R, a scalar. x: (B, *); y: (B,) labels, or None if the probe needs none; s: like x.

        s: the score at x, only for :class:`SteinPenalty` and form "paper".
        shared: the loss's forward pass at these weights, see :class:`SharedPass`; :meth:`attach`
        records it automatically.
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
        self._layers = [(id(part), type(part), part.training) for part in module.modules()]
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
        return self.every * value  # compensates for the calls that return zero

    def _count(self) -> None:
        """Count this call; record the loss's next forward only if a penalty follows it."""
        self.calls += 1
        if self._recorder is not None:
            self._recorder.idle = bool(self.calls % self.every)

    @abstractmethod
    def penalise(
        self, model: nn.Module, x: Tensor, y: Tensor | None, s: Tensor | None, shared: SharedPass
    ) -> Tensor:
        """R of these examples, a scalar; the model is in eval mode already."""

    def check_range(self, x: Tensor) -> None:
        """Warn at the first call if images are not scaled to [0, 1]."""
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
        """Tensors that calls change, for checkpoints; without the weights of a score."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore :meth:`state`."""

    def generator_on(self, device: torch.device) -> torch.Generator:
        """The random generator; it has to be on the device of the inputs."""
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
        The square of a K-probe estimate is too large by its variance. The product
        (r − D)(r' − D') of two independent sets of K probes is unbiased; it can be negative.
    every, fraction, batchnorm, generator, seed
        As for every :class:`~taser.regularisers.Regulariser`.
    """

    def __init__(
        self, probe: Probe | None = None, *, operator: Operator = "langevin",
        backend: Literal["auto", Backend] = "auto", probes: int = 1,
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
        self._cached: CachedChoice | None = None
        self._outputs_usable: bool | None = None  # whether outputs of the loss's pass equal f's

    def __getstate__(self) -> dict:
        return {**super().__getstate__(), "_cached": None}  # a weak reference has no pickle

    def penalise(
        self, model: nn.Module, x: Tensor, y: Tensor | None, s: Tensor | None, shared: SharedPass
    ) -> Tensor:
        """R of these examples; sets `last`."""
        r, backend = self.residuals(model, x, y, s, shared, self._layers)
        value = centered_square(r, self.center, unbiased=self.unbiased)
        self.last = Record.of(r, value, backend)
        return value

    def batch_correction(self, n: int, batch: int) -> float:
        """(n/(n−1))·((B−1)/B) if the residuals are centred by the mean of the n examples.

        A sum of squares about the sample mean is too small by (n−1)/n, the whole batch's by
        (B−1)/B. With several processes n and B count the examples of all.
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

    def _cached_choice(self, model: nn.Module, layers: list[tuple]) -> BackendChoice | None:
        """The cached choice, or None if the model, its modes or the need for gradients changed."""
        last = self._cached
        if last is None or last.model() is not model or last.layers != layers:
            return None
        return last.choice if last.graph or not torch.is_grad_enabled() else None

    def residuals(
        self, model: nn.Module, x: Tensor, y: Tensor | None, s: Tensor | None, shared: SharedPass,
        layers: list[tuple],
    ) -> tuple[Tensor, Backend]:  # fmt: skip
        """The residuals by probe, (K, B), and the backend; the model is in eval mode already.

        layers: the model's submodules and their modes in the loss, the key of the cached choice.
        """
        if s is None:
            raise ValueError("the score s at x is needed: penalty(model, x, y, score(x))")
        f, cached = Probed(model, self.probe, y), self._cached_choice(model, layers)
        check_inputs(x, s, first=cached is None)
        choice = cached or choose_backend(f, x, self.operator, self.backend)
        backend, f_x = choice.backend, None
        if backend == "difference":
            f_x = self._shared_values(f, x, shared, check=cached is None)
        r = residuals(
            f, x, s, choice, operator=self.operator,
            probes=self.probes * (2 if self.unbiased else 1), distribution=self.distribution,
            generator=self.generator_on(x.device), step=self.step, chunk=self.chunk,
            check=cached is None, f_x=f_x,
        )  # fmt: skip
        if cached is None and len(x) > 1:  # a single example cannot be coupled to another
            check_coupling(f, x)
            if self.backend == "auto" and (self.last is None or self.last.backend != backend):
                logger.info("backend='auto' chose %r for %r", backend, self.operator)
            if choice.certain:
                self._cached = CachedChoice(ref(model), layers, torch.is_grad_enabled(), choice)
        return r, backend

    def _shared_values(
        self, f: Probed, x: Tensor, shared: SharedPass, *, check: bool
    ) -> Tensor | None:
        """f(x) from the pass of the loss, if that computed the same function."""
        if check:
            self._outputs_usable = None
        if self._outputs_usable is None and shared.outputs is not None:
            self._outputs_usable = shared.matches(f, x)
        return shared.values(f, x) if self._outputs_usable else None

    def extra_repr(self) -> str:
        shown = {
            "probe": self.probe, "operator": self.operator, "backend": self.backend,
            "probes": self.probes, "center": self.center.kind, "unbiased": self.unbiased,
            "every": self.every, "fraction": self.fraction,
        }  # fmt: skip
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


@dataclass(frozen=True)
class CachedChoice:
    """The backend chosen for a model; graph: whether gradients were needed."""

    model: ReferenceType[nn.Module]
    layers: list[tuple]
    graph: bool
    choice: BackendChoice


class Center(nn.Module):
    """The centre D ≈ E[r]: the batch mean, a running mean, a number, or none (zero).

    Detaching the batch mean does not change the gradient, since Σ(r_i − r̄) = 0; detaching a running
    mean does. With several processes D is the detached mean over the global batch, which gives the
    gradient of one process with that batch.
    """

    value: Tensor

    def __init__(self, kind: str | float, momentum: float, detach: bool) -> None:
        super().__init__()
        if isinstance(kind, str) or not math.isfinite(kind):
            check_choice("center", kind, (*get_args(CenterName), "a finite number"))
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

    value: the penalty R; mean, std: of the residuals; all detached scalar tensors. Reading one as
    a number makes an accelerator wait.
    """

    backend: str
    value: Tensor
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, r: Tensor, value: Tensor, backend: str) -> "Record":
        """From residuals by probe, (K, B), and their penalty."""
        mean = r.detach().mean(0)
        return cls(backend, value.detach(), mean.mean(), mean.std(correction=0))

    def numbers(self) -> dict[str, float]:
        """Value, mean and standard deviation as plain numbers."""
        return {name: float(getattr(self, name)) for name in ("value", "mean", "std")}
