"""A score that is asked only for the examples that count."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Field = Callable[[Tensor], tuple[Tensor, Tensor]]
"""x ↦ (the points at which the model is asked, the scores), each (B, *)."""


@dataclass(frozen=True)
class Directed:
    """A score that is asked in a direction which the probe f itself gives, for the model at x.

    scores: (x, ∇f(x)) ↦ s, each (B, *).
    """

    scores: Callable[[Tensor, Tensor], Tensor]


def points_and_scores(field: Field, x: Tensor) -> tuple[Tensor, Tensor]:
    """field(x), which has to be a pair: a score itself is not such a function."""
    found = field(x)
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(
            "s should be a tensor like x, such as score(x), or a function that gives points and "
            f"scores; got {type(field).__name__}, which gives {type(found).__name__}"
        )
    return found
