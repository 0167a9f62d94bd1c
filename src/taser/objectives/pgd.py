"""Adversarial training (Madry et al., 2018)."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from taser import attacks
from taser.probes.precision import full_precision

from .objective import Loss, Model, Objective
from .standard import Task, check_task, task_loss


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
