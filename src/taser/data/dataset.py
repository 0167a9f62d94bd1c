"""A data set: training, validation and test examples, and what their numbers mean."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from .split import Split
from .standardisation import Standardisation

Task = Literal["classification", "regression"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three splits that share no example, and what their numbers mean.

    classes: the name of each class number, or None for regression.
    columns: the names of the features of a table, or None.
    standardisation: what was done to the features of a table, or None; keep it with the model.
    target_standardisation: the same for the targets of a regression.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...] | None
    columns: tuple[str, ...] | None = None
    standardisation: Standardisation | None = None
    target_standardisation: Standardisation | None = None

    def __post_init__(self) -> None:
        for part, split in self.splits.items():
            if split.shape != self.input_shape:
                raise ValueError(
                    f"the {part} inputs of {self.name} have shape {split.shape}, "
                    f"the training inputs {self.input_shape}: they should be alike"
                )
            self._check_targets(part, split.y)

    def _check_targets(self, part: str, y: Tensor) -> None:
        if self.classes is None:
            wrong = y.dtype != torch.float32
            wanted = "float32 targets, since there are no classes"
        else:
            wrong = y.dtype != torch.int64 or int(y.min()) < 0 or int(y.max()) >= len(self.classes)
            wanted = f"int64 labels in 0…{len(self.classes) - 1}, one for each class"
        if wrong:
            raise ValueError(
                f"y of the {part} part of {self.name} should be {wanted}; got {y.dtype} "
                f"from {y.min().item()} to {y.max().item()}"
            )

    @property
    def splits(self) -> dict[str, Split]:
        """The three splits by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W) or (d,)."""
        return self.train.shape

    @property
    def task(self) -> Task:
        """What y asks for."""
        return "regression" if self.classes is None else "classification"

    @cached_property
    def hash(self) -> str:
        """sha256 of the three splits, in order."""
        parts = "\n".join(split.hash for split in self.splits.values())
        return hashlib.sha256(parts.encode()).hexdigest()

    def to(self, device: torch.device | str) -> "Dataset":
        """The same data set on `device`."""
        train, validation, test = (split.to(device) for split in self.splits.values())
        return replace(self, train=train, validation=validation, test=test)
