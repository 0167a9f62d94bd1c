"""TASER: task-aware Stein regularisation, for robust training that follows the data's geometry."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taser import attacks, compare, data, evaluation, models, objectives, probes  # isort: skip
    from taser import regularisers, report, scores, stein, training  # isort: skip
    from taser.attacks import Threat
    from taser.evaluation import audit, certify, evaluate
    from taser.regularisers import Taser
    from taser.stein import SharedPass, SteinPenalty, stein_residual

__version__ = "0.1.0"

__all__ = [
    "SharedPass", "SteinPenalty", "Taser", "Threat", "attacks", "audit", "certify", "compare",
    "data", "evaluate", "evaluation", "models", "objectives", "probes", "regularisers", "report",
    "scores", "stein", "stein_residual", "training",
]  # fmt: skip

_HOME = {
    "SharedPass": "stein", "SteinPenalty": "stein", "stein_residual": "stein",
    "Taser": "regularisers", "Threat": "attacks", "audit": "evaluation",
    "certify": "evaluation", "evaluate": "evaluation",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: `taser --help` and Tab should not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'taser' has no attribute {name!r}")
    module = import_module(f".{_HOME.get(name, name)}", __name__)
    globals()[name] = value = getattr(module, name) if name in _HOME else module
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
