"""How good a model is on held-out examples, clean and under a short attack."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from taser import attacks
from taser._distributed import VALIDATION, combine_seeds, world_size
from taser.stein._model_state import eval_mode


@dataclass(frozen=True)
class Scores:
    """Accuracies, clean and under attack; for regression mean squared errors, negated."""

    clean: float
    robust: float


def validate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    attack: attacks.PGD,
    *,
    seed: int = 0,
    batch: int = 256,
    rank: int = 0,
) -> Scores:
    """Clean and robust figures over x, (N, *), and y, (N,); each process takes its part."""
    regression = y.is_floating_point()
    loss = attacks.squared_error if regression else attacks.cross_entropy
    sums = torch.zeros(3, dtype=torch.float64)
    device = next(model.parameters()).device
    for number, rows in enumerate(torch.arange(len(x)).split(batch)):
        if number % world_size() != rank:
            continue
        here, target = x[rows].to(device), y[rows].to(device)
        generator = torch.Generator(device).manual_seed(combine_seeds(seed, VALIDATION, number))
        moved = attack(model, here, target, loss=loss, generator=generator)
        with eval_mode(model, freeze=True), torch.no_grad():
            before, after = model(here), model(moved)
        if regression:
            merits = [-attacks.squared_error(outputs, target) for outputs in (before, after)]
        else:
            merits = [(outputs.argmax(1) == target).float() for outputs in (before, after)]
        sums += torch.stack([merit.sum() for merit in (*merits, torch.ones_like(merits[0]))]).cpu()
    if world_size() > 1:
        sums = sums.to(device)
        dist.all_reduce(sums)
    clean, robust, n = sums.tolist()
    return Scores(clean / n, robust / n)
