"""Projected gradient ascent: for training, with restarts for evaluation, and in one step."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from taser._runtime import noise_like
from taser.probes import AttackLoss, cross_entropy, margin, task_loss
from taser.stein._model_state import eval_mode, outputs_of

from ._attack import Model, WorstPoints, check_positive, short_repr
from ._threat import Rng, Threat

Start = Literal["random", "gaussian", "clean"]
LARGEST_STEP = 10  # times ε
GAUSSIAN_START = 1e-3  # of TRADES and MART: at x the KL has no gradient


def check_step_size(attack: "PGD | RestartedPGD") -> None:
    """Raise if the step is so long that it alternates between corners of the ball."""
    check_positive(attack, "step_size")
    epsilon = attack.threat.epsilon
    if (attack.step_size or 0) > LARGEST_STEP * epsilon:
        limit = f"at most {LARGEST_STEP} times epsilon={epsilon:g}"
        raise ValueError(f"step_size should be {limit}; got {attack.step_size:g}")


def outputs_and_gradient(
    model: Model, x: Tensor, y: Tensor, loss: AttackLoss
) -> tuple[Tensor, Tensor]:
    """f(x), (B, …), and ∇_x Σ_i ℓ(f(x_i), y_i), (B, *), both detached."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        outputs = outputs_of(model, x.clone())  # a first layer may work in place
        (gradient,) = torch.autograd.grad(loss(outputs, y).sum(), x)
    return outputs.detach(), gradient


def input_gradient(model: Model, x: Tensor, y: Tensor, loss: AttackLoss) -> Tensor:
    """∇_x Σ_i ℓ(f(x_i), y_i), (B, *): the gradient of each example if they are not coupled."""
    return outputs_and_gradient(model, x, y, loss)[1]


@dataclass(frozen=True, repr=False)
class PGD:
    """x ← Π(x + η·ascent(∇ℓ)), `steps` times, from a random point of the ball; the last iterate.

    step_size: η; None: 2.5·ε/steps, so that every point of the ball can be reached and left again.
    start: "random": uniform in the ball; "gaussian": x + 0.001·N(0, 1), as TRADES and MART do;
    "clean": x itself. loss: the loss to ascend unless the call gives one. name: by default "pgd-10"
    for ten steps. The model runs in eval mode; its statistics and gradients do not change.
    """

    threat: Threat = field(default_factory=Threat)
    steps: int = 10
    step_size: float | None = None
    start: Start = "random"
    loss: AttackLoss = cross_entropy
    name: str = ""
    __repr__ = short_repr
    effective_step_size = property(
        lambda self: self.step_size or 2.5 * self.threat.epsilon / self.steps
    )
    passes = property(lambda self: 3 * self.steps)

    def __post_init__(self) -> None:
        check_positive(self, "steps")
        check_step_size(self)
        if self.start not in get_args(Start):
            raise ValueError(f"start should be one of {get_args(Start)}; got {self.start!r}")
        object.__setattr__(self, "name", self.name or f"pgd-{self.steps}")

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *,
        loss: AttackLoss | None = None, generator: Rng = None,
    ) -> Tensor:  # fmt: skip
        x = x.detach()
        x_adv = self._begin(x, generator)
        with eval_mode(model, freeze=True):
            for _ in range(self.steps):
                valid = self.threat.valid(x_adv, x)
                gradient = input_gradient(model, valid, y, loss or task_loss(self.loss, y))
                step = self.effective_step_size * self.threat.ascent(gradient, valid)
                x_adv = self.threat.relax(x_adv + step, x)
        return self.threat.valid(x_adv, x)

    def _begin(self, x: Tensor, generator: Rng) -> Tensor:
        if self.start != "gaussian":
            return self.threat.random(x, generator) if self.start == "random" else x
        return x + GAUSSIAN_START * noise_like(x, generator)


@dataclass(frozen=True, repr=False)
class FGSM(PGD):
    """x' = Π(x + ε·ascent(∇ℓ(x))), from the clean point."""

    steps: int = field(default=1, init=False)
    step_size: float | None = field(default=None, init=False)
    start: Start = field(default="clean", init=False)
    name: str = "fgsm"
    effective_step_size = property(lambda self: self.threat.epsilon)


@dataclass(frozen=True, repr=False)
class RestartedPGD:
    """PGD for evaluation: from `restarts` random points, or from x itself; the worst point found.

    step_size: None: 2.5·ε/steps; loss: by default the margin, which unlike cross-entropy cannot
    saturate. An example is dropped at the first step that breaks it; otherwise the point with the
    largest margin loss is kept. In regression the point with the largest error is kept, and the
    first start is x itself, where the gradient has the sign of the error.
    """

    threat: Threat = field(default_factory=Threat)
    steps: int = 50
    restarts: int = 5
    step_size: float | None = None
    loss: AttackLoss = margin
    random_start: bool = True
    name: str = "pgd"
    early_exit: ClassVar[bool] = True
    __repr__ = short_repr
    # From x itself every restart would be the same.
    starts = property(lambda self: self.restarts if self.random_start else 1)
    passes = property(lambda self: self.starts * (3 * self.steps + 1))

    def __post_init__(self) -> None:
        check_positive(self, "steps", "restarts")
        check_step_size(self)

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *,
        loss: AttackLoss | None = None, generator: Rng = None,
    ) -> Tensor:  # fmt: skip
        x, loss = x.detach(), loss or task_loss(self.loss, y)
        step_size = self.step_size or 2.5 * self.threat.epsilon / self.steps
        with eval_mode(model, freeze=True):
            worst = WorstPoints(model, x, y)
            for start in range(self.starts):
                rows = worst.robust if self.early_exit else torch.arange(len(x), device=x.device)
                if len(rows) == 0:
                    break
                drawn = self.random_start and (start > 0 or not y.is_floating_point())
                x_adv = self.threat.random(x[rows], generator) if drawn else x[rows]
                for _ in range(self.steps):
                    valid = self.threat.valid(x_adv, x[rows])
                    logits, gradient = outputs_and_gradient(model, valid, y[rows], loss)
                    robust = worst.update(rows, valid, logits)
                    if self.early_exit:
                        rows, x_adv, gradient = rows[robust], x_adv[robust], gradient[robust]
                        valid = valid[robust]
                    if len(rows) == 0:
                        break
                    step = step_size * self.threat.ascent(gradient, valid)
                    x_adv = self.threat.relax(x_adv + step, x[rows])
                else:
                    x_adv = self.threat.valid(x_adv, x[rows])
                    with torch.no_grad():
                        worst.update(rows, x_adv, model(x_adv.clone()))  # which may work in place
        return worst.x


class TransferPGD(RestartedPGD):
    """RestartedPGD without early exit, for :class:`Transfer`: points far across the boundary."""

    early_exit = False
