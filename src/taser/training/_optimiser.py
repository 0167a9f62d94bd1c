"""The optimiser, and its state as tensors."""

from typing import Any

import torch
from torch import Tensor, nn

from ._config import OptimiserConfig


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
