"""Clean and robust figures of a model on held-out examples."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from taser import attacks
from taser._runtime import VALIDATION, all_sum, combine_seeds, world_size
from taser.stein._model_state import eval_mode


@dataclass(frozen=True)
class ValidationMetrics:
    """Accuracies, clean and under attack; for regression mean squared errors, negated."""

    clean: float
    robust: float


def validate(
    model: nn.Module, x: Tensor, y: Tensor, attack: attacks.PGD,
    *, seed: int = 0, batch: int = 256, rank: int = 0,
) -> ValidationMetrics:  # fmt: skip
    """Clean and robust figures over x, (N, *), and y, (N,); each process takes its share."""
    regression = y.is_floating_point()
    loss = attacks.squared_error if regression else attacks.cross_entropy
    sums = torch.zeros(2, dtype=torch.float64)
    device = next(model.parameters()).device
    for number, rows in enumerate(torch.arange(len(x)).split(batch)):
        if number % world_size() != rank:
            continue
        inputs, target = x[rows].to(device), y[rows].to(device)
        generator = torch.Generator(device).manual_seed(combine_seeds(seed, VALIDATION, number))
        attacked = attack(model, inputs, target, loss=loss, generator=generator)
        with eval_mode(model, freeze=True), torch.no_grad():
            for place, outputs in enumerate((model(inputs), model(attacked))):
                right = -loss(outputs, target) if regression else outputs.argmax(1) == target
                sums[place] += right.sum().cpu()
    if world_size() > 1:
        sums = all_sum(sums.to(device))
    return ValidationMetrics(*(sums / len(x)).tolist())
