"""A data set: training, validation and test examples as tensors."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from taser._files import add_array, add_shape


class Batch(NamedTuple):
    """x: (B, *); y: (B,); s: the score field, like x, or None; index: (B,) rows of the split."""

    x: Tensor
    y: Tensor
    s: Tensor | None
    index: Tensor  # type: ignore[assignment]  # tuples have a method of that name

    def __repr__(self) -> str:
        scores = "no scores" if self.s is None else "with scores"
        return f"Batch({len(self.x)} inputs of shape {tuple(self.x.shape[1:])}, {scores})"


TOLERANCE = 1e-6  # of [0, 1]: what rounding does to pixels that were scaled in float32
ROWS = 4096  # hashed at a time


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Inputs x with their labels or targets y; treat both as read-only.

    stored: images (N, C, H, W), float32 in [0, 1] or bytes that stand for k/255; or vectors (N, d),
    float32. y: class numbers (N,), int64, or targets (N,), float32.

    Bytes take a quarter of the memory: `x` converts all of them at its first use, `rows`
    only the rows that a batch needs.

    >>> import torch
    >>> split = Split(torch.rand(5, 1, 8, 8), torch.arange(5))
    >>> split.x.shape, len(split)
    (torch.Size([5, 1, 8, 8]), 5)
    """

    stored: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        bytes_of_images = self.stored.ndim == 4 and self.stored.dtype == torch.uint8
        floats = self.stored.ndim in (2, 4) and self.stored.dtype == torch.float32
        if not (bytes_of_images or floats):
            raise ValueError(
                "x should be float32 images (N, C, H, W) or vectors (N, d), or images as uint8; "
                f"got {tuple(self.stored.shape)} of {self.stored.dtype}"
            )
        kinds = (torch.int64, torch.float32)
        if self.y.shape != self.stored.shape[:1] or self.y.dtype not in kinds:
            raise ValueError(
                f"y should be ({len(self)},), one int64 label or float32 target for each row of "
                f"x; got {tuple(self.y.shape)} of {self.y.dtype}"
            )
        if self.stored.numel() == 0:
            raise ValueError(
                f"a split should hold at least one example; got {tuple(self.stored.shape)}"
            )
        if not bool(torch.isfinite(self.y).all()):
            raise ValueError("y should be finite; it has entries that are NaN or infinite")
        if floats:
            low, high = (float(end) for end in torch.aminmax(self.stored))  # NaN, if there is one
            if not (isfinite(low) and isfinite(high)):
                raise ValueError("x should be finite; it has entries that are NaN or infinite")
            if self.is_images and (low < -TOLERANCE or high > 1 + TOLERANCE):
                raise ValueError(
                    f"images should have values in [0, 1]; got values from {low:g} to {high:g}"
                    + (" (divide bytes by 255)" if high > 2 else "")
                )

    def __repr__(self) -> str:
        return f"Split({len(self):,} inputs of shape {self.shape})"

    def __len__(self) -> int:
        return len(self.stored)

    @cached_property
    def x(self) -> Tensor:
        """All inputs: float32 images (N, C, H, W) in [0, 1], or vectors (N, d)."""
        return _floats(self.stored)

    def rows(self, index: Tensor | slice) -> Tensor:
        """The inputs x[index], and no others."""
        return _floats(self.stored[index])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W) or (d,)."""
        return tuple(self.stored.shape[1:])

    @property
    def is_images(self) -> bool:
        """Whether inputs are (C, H, W)."""
        return self.stored.ndim == 4

    @property
    def box(self) -> tuple[float, float] | tuple[None, None]:
        """The bounds of an input: (0, 1) for images, none for the features of a table."""
        return (0.0, 1.0) if self.is_images else (None, None)

    @cached_property
    def hash(self) -> str:
        """sha256 of the numbers x and y, however they are stored."""
        digest = hashlib.sha256()
        add_shape(digest, "f4", self.stored.shape)
        for start in range(0, len(self), ROWS):
            add_array(digest, self.rows(slice(start, start + ROWS)).numpy(force=True))
        y = self.y.numpy(force=True)
        add_shape(digest, f"{y.dtype.kind}{y.dtype.itemsize}", y.shape)
        add_array(digest, y)
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> "Split":
        """The same examples on `device`."""
        return Split(self.stored.to(device), self.y.to(device))


def _floats(x: Tensor) -> Tensor:
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x


@dataclass(frozen=True)
class Standardisation:
    """u = (x − mean) / std over the last dimension; fitted on the training part only.

    mean, std: one number for each feature. Save it with the model that was trained on u: a new x
    has to be scaled by the same numbers.

    >>> import torch
    >>> scale = Standardisation.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> scale.apply(torch.tensor([[2.0, 6.0]]))
    tensor([[0., 1.]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(
                "a standardisation needs one mean and one std for each feature; "
                f"got {len(self.mean)} means and {len(self.std)} stds"
            )
        if not all(0 < std < inf for std in self.std):
            raise ValueError(f"every std should be positive and finite; got {list(self.std)}")
        if not all(map(isfinite, self.mean)):
            raise ValueError(f"every mean should be finite; got {list(self.mean)}")

    @classmethod
    def fit(cls, x: Tensor) -> "Standardisation":
        """Mean and standard deviation of each column of x, (N, d).

        A column that never changes keeps std 1: it becomes zero instead of not a number.
        """
        if x.ndim != 2 or len(x) == 0:
            raise ValueError(f"x should be vectors, (N, d); got {tuple(x.shape)}")
        std, mean = torch.std_mean(x.double(), 0, correction=0)
        constant = (x == x[0]).all(0)  # rounding in the mean can leave a std that is not quite 0
        std = torch.where(constant | (std == 0), torch.ones_like(std), std)
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def apply(self, x: Tensor) -> Tensor:
        """x → u; any shape whose last dimension is the features."""
        mean, std = self._tensors(x)
        return ((x.double() - mean) / std).to(x.dtype)

    def invert(self, u: Tensor) -> Tensor:
        """u → x."""
        mean, std = self._tensors(u)
        return (u.double() * std + mean).to(u.dtype)

    def _tensors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.ndim == 0 or x.shape[-1] != len(self.mean):
            raise ValueError(
                f"this standardisation is of {len(self.mean)} features, so the last dimension of "
                f"x should be {len(self.mean)}; got {tuple(x.shape)}"
            )
        mean = torch.tensor(self.mean, dtype=torch.float64, device=x.device)
        return mean, torch.tensor(self.std, dtype=torch.float64, device=x.device)


Task = Literal["classification", "regression"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three splits that share no example, with the names and scales of their numbers.

    classes: the name of each class number, or None for regression.
    columns: the names of the features of a table, or None.
    standardisation: how the features of a table were scaled, or None; keep it with the model.
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
                    f"the training inputs {self.input_shape}: they should be the same"
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
        """Classification or regression."""
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


@dataclass(frozen=True, eq=False)
class Examples:
    """As a source has them. x: (N, C, H, W) or (N, d), bytes or floats; y: (N,)."""

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


def concatenate(parts: Sequence[Examples]) -> Examples:
    """Several examples as one array each of x and y."""
    x, y = ([getattr(part, name) for part in parts] for name in ("x", "y"))
    return Examples(np.concatenate(x), np.concatenate(y))


@dataclass(frozen=True, eq=False)
class RawDataset:
    """The parts of a data set as a source has them; `load` holds out of `train` what is missing.

    classes: the name of each class number in y, or None if y is the target of a regression.
    columns: the names of the features of a table, or None.
    """

    train: Examples
    validation: Examples | None = None
    test: Examples | None = None
    classes: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
