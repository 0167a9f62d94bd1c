"""Comparing penalties fairly: along their whole path over λ, never at one λ each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from .sensitivity import Sensitivity

Path = Sequence[Sensitivity]
"""One penalty and one seed, over growing λ."""
Part = Literal["tangent", "normal"]
"""Which of the two sensitivities is held equal."""


@dataclass(frozen=True)
class Matched:
    """What a path gives at some λ between two that were tried."""

    tangent: float
    normal: float
    accuracy: float

    @property
    def ratio(self) -> float:
        """Normal over tangential sensitivity."""
        return self.normal / self.tangent


def common_levels(paths: Sequence[Path], part: Part, count: int = 3) -> list[float]:
    """`count` levels of `part` that every path passes, evenly spread on a log scale.

    They lie inside the range that all paths share, apart from its ends; none if there is none.
    """
    low = max(min(getattr(point, part) for point in path) for path in paths)
    high = min(max(getattr(point, part) for point in path) for path in paths)
    if not 0 < low < high:
        return []
    return [low * (high / low) ** (k / (count + 1)) for k in range(1, count + 1)]


def at_level(path: Path, part: Part, level: float) -> Matched:
    """The path where `part` is `level`, by straight lines between neighbours on log scales.

    A path that passes the level more than once is read at the largest λ that does.
    """
    for weak, strong in reversed(list(pairwise(path))):
        start, end = getattr(weak, part), getattr(strong, part)
        if min(start, end) <= level <= max(start, end) and start != end:
            share = math.log(level / start) / math.log(end / start)
            return Matched(
                tangent=weak.tangent * (strong.tangent / weak.tangent) ** share,
                normal=weak.normal * (strong.normal / weak.normal) ** share,
                accuracy=weak.accuracy + (strong.accuracy - weak.accuracy) * share,
            )
    reached = [getattr(point, part) for point in path]
    raise ValueError(
        f"the level of {part} should lie within what the path reaches, {min(reached):.3g} to "
        f"{max(reached):.3g}; got {level:.3g}"
    )


def strongest(accuracies: Sequence[float], floor: float) -> int:
    """The last place in a path of growing λ whose accuracy is at least `floor`; else the first."""
    return max((k for k, accuracy in enumerate(accuracies) if accuracy >= floor), default=0)
