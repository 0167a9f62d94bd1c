"""What a reader hands over: examples as they were stored, before scaling and splitting."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Examples:
    """x: bytes or floats, images (N, C, H, W) or vectors (N, d); y: (N,) labels or targets."""

    x: np.ndarray
    y: np.ndarray

    def __post_init__(self) -> None:
        if self.x.ndim not in (2, 4) or self.y.shape != self.x.shape[:1]:
            raise ValueError(
                "examples should be x of (N, C, H, W) or (N, d) with y of (N,); "
                f"got x of {self.x.shape} and y of {self.y.shape}"
            )

    def __len__(self) -> int:
        return len(self.x)


def joined(lots: Sequence[Examples]) -> Examples:
    """Several lots of examples as one."""
    return Examples(
        np.concatenate([lot.x for lot in lots]), np.concatenate([lot.y for lot in lots])
    )


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts that a source keeps apart; those that it lacks are held out of `train` later.

    classes: the name of each class number in y, or None if y is the target of a regression.
    columns: the names of the features of a table, or None.
    """

    train: Examples
    validation: Examples | None = None
    test: Examples | None = None
    classes: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
