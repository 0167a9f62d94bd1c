"""Measuring what has been trained."""

from taser.data._splitting import subset

from ._audit import Audit, Point, TooFewCorrect, audit, undefended
from ._audit_checks import CHECKS, Check
from ._curve import accuracy_curve
from ._evaluate import evaluate
from ._out_of_distribution import out_of_distribution
from ._paired import Comparison, compare
from ._record import Evaluation, Finding
from ._shift import shift
from ._statistics import (
    Interval,
    accuracy_interval,
    difference_interval,
    mcnemar,
    retrained_interval,
)

__all__ = [
    "CHECKS", "Audit", "Check", "Comparison", "Evaluation", "Finding", "Interval", "Point",
    "TooFewCorrect", "accuracy_curve", "accuracy_interval", "audit", "compare",
    "difference_interval", "evaluate", "mcnemar", "out_of_distribution", "retrained_interval",
    "shift", "subset", "undefended",
]  # fmt: skip
