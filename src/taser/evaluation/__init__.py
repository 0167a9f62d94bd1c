"""Measuring what has been trained."""

from taser._runtime import wrap_public_api
from taser.data._dataset import subset

from ._audit import Audit, TooFewCorrect, audit, undefended
from ._audit_checks import CHECKS, Check
from ._certify import Certificates, attack_smoothed, certify, read_certificates
from ._corruptions import shift
from ._evaluate import Curve, accuracy_curve, evaluate
from ._out_of_distribution import out_of_distribution
from ._record import Evaluation, Finding
from ._regression import RegressionEvaluation, compare_errors, error_curve, evaluate_regression
from ._statistics import (
    Comparison,
    Interval,
    accuracy_interval,
    compare,
    difference_interval,
    mcnemar,
    retrained_interval,
)

__all__ = [
    "CHECKS", "Audit", "Certificates", "Check", "Comparison", "Curve", "Evaluation", "Finding",
    "Interval", "RegressionEvaluation", "TooFewCorrect", "accuracy_curve", "accuracy_interval",
    "attack_smoothed", "audit", "certify", "compare", "compare_errors", "difference_interval",
    "error_curve", "evaluate", "evaluate_regression", "mcnemar", "out_of_distribution",
    "read_certificates", "retrained_interval", "shift", "subset", "undefended",
]  # fmt: skip

wrap_public_api(globals(), (  # checks argument types, names them in errors
    "accuracy_curve", "accuracy_interval", "attack_smoothed", "audit", "certify",
    "difference_interval", "evaluate", "evaluate_regression", "mcnemar", "shift", "subset",
    "undefended",
))  # fmt: skip
