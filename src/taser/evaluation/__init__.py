"""Measuring what has been trained."""

from taser.data.subset import subset

from .comparison import Comparison, compare
from .evaluate import evaluate
from .findings import Finding
from .record import Evaluation
from .statistics import (
    Interval,
    accuracy_interval,
    difference_interval,
    mcnemar,
    retrained_interval,
)

__all__ = [
    "Comparison", "Evaluation", "Finding", "Interval", "accuracy_interval", "compare",
    "difference_interval", "evaluate", "mcnemar", "retrained_interval", "subset",
]  # fmt: skip
