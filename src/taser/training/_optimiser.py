"""The optimiser with its state as tensors, its learning rate, and the ramp of λ."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ._config import OptimiserConfig, ScheduleConfig


def build_optimiser(model: nn.Module, config: OptimiserConfig) -> torch.optim.Optimizer:
    """Adam, AdamW or SGD with Nesterov's momentum, over the parameters that want gradients."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameters to train")
    rate, decay = config.rate, config.weight_decay
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters, lr=rate, momentum=config.momentum, weight_decay=decay,
            nesterov=config.momentum > 0,
        )  # fmt: skip
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(parameters, lr=rate, betas=config.betas, weight_decay=decay)


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of each parameter, by "number.name"; the settings are the configuration's."""
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, state in optimiser.state_dict()["state"].items()
        for name, value in state.items()
        if value is not None
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Undo :func:`optimiser_tensors`."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})


def learning_rate(step: int, steps: int, highest: float, config: ScheduleConfig) -> float:
    """η at step 0 ≤ t < T: a linear warm-up, then the schedule.

    Cosine: η_min + ½(η_max − η_min)(1 + cos(π (t − T_w)/(T − T_w))), as the paper fine-tunes.
    """
    warm = config.warmup * steps
    if step < warm:
        return highest * min(1.0, (step + 1) / warm)
    done = (step - warm) / max(1.0, steps - warm)
    lowest = config.final * highest
    if config.name == "cosine":
        return lowest + 0.5 * (highest - lowest) * (1 + math.cos(math.pi * done))
    if config.name == "linear":
        return highest + (lowest - highest) * done
    if config.name == "step":
        return highest * config.factor ** sum(step >= mark * steps for mark in config.milestones)
    return highest


def ramp(step: int, steps: int, share: float) -> float:
    """min(1, t/T_w), which λ is multiplied with; T_w the given share of training."""
    return 1.0 if share <= 0 else min(1.0, step / max(1.0, share * steps))
