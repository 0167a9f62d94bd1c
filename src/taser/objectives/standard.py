"""Training on the data as they are."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from taser.attacks import squared_error
from taser.probes.precision import full_precision

from .objective import Loss, Model, Objective

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Standard(Objective):
    """Cross-entropy, or squared error for regression: mean_i ℓ(f(x_i), y_i)."""

    task: Task = "classification"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_task(self.task)

    def loss(self, model: Model, x: Tensor, y: Tensor, moved: Tensor) -> Loss:  # noqa: ARG002
        """mean_i ℓ(f(x_i), y_i)."""
        outputs = full_precision(model(x))
        return Loss(task_loss(outputs, y, self.task, self.label_smoothing), {}, clean=outputs)


def task_loss(outputs: Tensor, y: Tensor, task: Task, label_smoothing: float = 0.0) -> Tensor:
    """The mean loss of a batch, a scalar. outputs: (B, C) or (B,); y: (B,)."""
    if task == "regression":
        return squared_error(outputs, y).mean()
    return F.cross_entropy(outputs, y, label_smoothing=label_smoothing)


def check_task(task: str) -> None:
    """Raise for a task that does not exist."""
    if task not in get_args(Task):
        raise ValueError(f"task should be one of {get_args(Task)}; got {task!r}")
