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
