"""TASER: task-aware Stein regularisation, for robust training that follows the data's geometry."""

from . import attacks, data, models, objectives, probes, scores, stein
from .evaluation import evaluate
from .stein import SharedPass, SteinPenalty, stein_residual

__version__ = "0.1.0"

__all__ = [
    "SharedPass", "SteinPenalty", "attacks", "data", "evaluate", "models", "objectives", "probes",
    "scores", "stein", "stein_residual",
]  # fmt: skip
