"""Objectives: an attack, if any, and a loss at the attacked points."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from taser import attacks
from taser._runtime import full_precision, noise_like
from taser.attacks import Attack, LossAttack, Model, Threat
from taser.probes import kl_divergence, squared_error
from taser.stein._model_state import outputs_of

Task = Literal["classification", "regression"]


@dataclass(frozen=True, eq=False, repr=False)
class Loss:
    """A scalar to minimise, its parts by name, and the outputs it was computed from.

    clean: outputs at x; attacked: outputs at the adversarial points; None if not computed. Both
    (B, …), with their graph.
    """

    total: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)
    clean: Tensor | None = None
    attacked: Tensor | None = None

    def __repr__(self) -> str:
        parts = "".join(f", {name}={float(part.mean()):.4g}" for name, part in self.parts.items())
        return f"Loss({float(self.total):.4g}{parts})"


class Objective:
    """Call it in any loop: loss = objective(model, x, y). A subclass writes attack, loss or both.

    task, label_smoothing: used by the default :meth:`loss`. inner: the attack, if there is one.
    """

    moves_inputs: ClassVar[bool] = True  # whether the loss is at points that `attack` returns
    start: ClassVar[Literal["random", "gaussian"]] = "random"  # start of a recipe's PGD attack
    one_step: ClassVar[bool] = False  # whether a recipe's attack is a single step of 1.25·ε
    keys: ClassVar[dict[str, str]] = {}  # parameter: key of ObjectiveConfig that sets it
    task: Task = "classification"
    label_smoothing: float = 0.0
    inner: Attack | None = None

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The loss of a batch, a scalar. x: (B, *); y: (B,)."""
        return self.loss(model, x, y, self.attack(model, x, y, generator=generator)).total

    def attack(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """The points to train at, (B, *): what `inner` finds, or x itself without an attack."""
        return x if self.inner is None else self.inner(model, x, y, generator=generator)

    def loss(self, model: Model, x: Tensor, y: Tensor, x_adv: Tensor) -> Loss:
        """mean_i ℓ(f(x'_i), y_i), ℓ the cross-entropy, or the squared error for regression.

        x_adv: x', from :meth:`attack`, (B, *). The model runs in its own mode.
        """
        outputs = full_precision(outputs_of(model, x_adv if self.moves_inputs else x))
        if self.task == "regression":
            loss = squared_error(outputs, y).mean()
        else:
            loss = F.cross_entropy(outputs, y, label_smoothing=self.label_smoothing)
        return Loss(loss, attacked=outputs) if self.moves_inputs else Loss(loss, clean=outputs)

    def check_task(self) -> None:
        """Raise for an unknown task, or an invalid label_smoothing."""
        task, smoothing = self.task, self.label_smoothing
        if task not in get_args(Task):
            raise ValueError(f"task should be one of {get_args(Task)}; got {task!r}")
        if not 0 <= smoothing <= (task == "classification"):
            none = "0, since there are no labels to smooth"
            wanted = none if task == "regression" else "in [0, 1]"
            raise ValueError(f"label_smoothing of a {task} should be {wanted}; got {smoothing}")


@dataclass(frozen=True)
class Standard(Objective):
    """Cross-entropy, or squared error for regression: mean_i ℓ(f(x_i), y_i)."""

    moves_inputs: ClassVar[bool] = False
    task: Task = "classification"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        self.check_task()


@dataclass(frozen=True)
class PGD(Objective):
    """Adversarial training (Madry et al., 2018): mean_i max_{‖δ‖ ≤ ε} ℓ(f(x_i + δ), y_i).

    inner: the attack that approximates the maximum; for regression one that takes a loss.
    """

    inner: Attack = field(default_factory=attacks.PGD)
    task: Task = "classification"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        self.check_task()
        if self.task == "regression":
            check_loss_attack(self.inner, "PGD training for regression")

    def attack(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Points that raise the loss."""
        if self.task == "regression":
            assert isinstance(self.inner, LossAttack)
            return self.inner(model, x, y, loss=squared_error, generator=generator)
        return super().attack(model, x, y, generator=generator)


@dataclass(frozen=True)
class Fast(PGD):
    """One-step adversarial training (Wong, Rice and Kolter, 2020): one step from a random start.

    inner: by default a step of 1.25·ε. Watch the accuracy under PGD: it can fall to zero within an
    epoch (catastrophic overfitting), at a large ε or after long training.
    """

    one_step: ClassVar[bool] = True
    inner: Attack = field(default_factory=lambda: one_step_pgd(Threat()))


@dataclass(frozen=True)
class Gaussian(Objective):
    """Gaussian augmentation (Cohen, Rosenfeld and Kolter, 2019): mean_i CE(f(x_i + σz_i), y_i).

    z is standard normal. Train so for randomised smoothing: :func:`taser.certify` with the same σ.
    """

    keys: ClassVar[dict[str, str]] = {"sigma": "sigma"}
    sigma: float = 0.25
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.sigma < math.inf:
            raise ValueError(f"sigma should be a positive number; got {self.sigma}")
        self.check_task()

    def attack(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None,  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        """x + σz, not clipped to the range of the inputs."""
        return x + self.sigma * noise_like(x, generator)


def one_step_pgd(threat: Threat, step_size: float | None = None) -> attacks.PGD:
    """PGD with a single step, of 1.25·ε unless given, from a random point of the ball."""
    return attacks.PGD(threat, 1, step_size or 1.25 * threat.epsilon)


def check_loss_attack(attack: Attack, objective: str) -> None:
    """Raise unless the attack takes a loss."""
    if not isinstance(attack, LossAttack):
        raise TypeError(
            f"{objective} needs an attack that takes a loss, such as taser.attacks.PGD; "
            f"got {type(attack).__name__}"
        )


def teacher_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """mean_i KL(f_θ0(x_i) ‖ f_θ(x_i)), a scalar, from logits (B, C); no temperature."""
    return kl_divergence(teacher.detach(), student).mean()
