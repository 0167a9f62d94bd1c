"""Adversarial training (Madry et al., 2018)."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from taser import attacks
from taser._tensors import full_precision
from taser.attacks import squared_error

from ._objective import Loss, Model, Objective

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Standard(Objective):
    """Cross-entropy, or squared error for regression: mean_i ℓ(f(x_i), y_i)."""

    adversarial: ClassVar[bool] = False
    task: Task = "classification"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_task(self.task, self.label_smoothing)

    def loss(self, model: Model, x: Tensor, y: Tensor, moved: Tensor) -> Loss:  # noqa: ARG002
        """mean_i ℓ(f(x_i), y_i)."""
        outputs = full_precision(model(x))
        return Loss(task_loss(outputs, y, self.task, self.label_smoothing), {}, clean=outputs)


def task_loss(outputs: Tensor, y: Tensor, task: Task, label_smoothing: float = 0.0) -> Tensor:
    """The mean loss of a batch, a scalar. outputs: (B, C) or (B,); y: (B,)."""
    if task == "regression":
        return squared_error(outputs, y).mean()
    return F.cross_entropy(outputs, y, label_smoothing=label_smoothing)


def check_task(task: str, label_smoothing: float) -> None:
    """Raise for a task that does not exist, and for a smoothing that it cannot have."""
    if task not in get_args(Task):
        raise ValueError(f"task should be one of {get_args(Task)}; got {task!r}")
    if not 0 <= label_smoothing <= (task == "classification"):
        wanted = "0, for there are no labels to smooth" if task == "regression" else "in [0, 1]"
        raise ValueError(f"label_smoothing of a {task} should be {wanted}; got {label_smoothing}")


@dataclass(frozen=True)
class PGD(Objective):
    """mean_i max_{‖δ‖ ≤ ε} ℓ(f(x_i + δ), y_i), the maximum by projected gradient ascent."""

    inner: attacks.PGD = field(default_factory=attacks.PGD)
    task: Task = "classification"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_task(self.task, self.label_smoothing)

    def attack(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Points that raise the loss, from a random start."""
        regression = self.task == "regression"
        loss = attacks.squared_error if regression else attacks.cross_entropy
        return self.inner(model, x, y, loss=loss, generator=generator)

    def loss(self, model: Model, x: Tensor, y: Tensor, moved: Tensor) -> Loss:  # noqa: ARG002
        """mean_i ℓ(f(x'_i), y_i)."""
        outputs = full_precision(model(moved))
        return Loss(task_loss(outputs, y, self.task, self.label_smoothing), {}, attacked=outputs)
