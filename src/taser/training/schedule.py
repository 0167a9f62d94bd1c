"""What changes over training: the learning rate and the regulariser's weight."""

import math

from .config import ScheduleConfig


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
