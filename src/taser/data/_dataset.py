"""A data set: training, validation and test examples as tensors, and their scaling."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import inf, isfinite
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter
from torch import Tensor

from taser._files import add_numbers

TOLERANCE = 1e-6  # outside [0, 1]: rounding of pixels that were scaled in float32
ROWS = 4096  # hashed at a time


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Inputs x with their labels or targets y; treat both as read-only.

    stored: images (N, C, H, W), float32 in [0, 1] or bytes k meaning k/255; or vectors (N, d),
    float32. y: class numbers (N,), int64, or targets (N,), float32. `x` converts all bytes when
    first used, and caches them; `rows` converts only some rows.

    >>> import torch
    >>> split = Split(torch.rand(5, 1, 8, 8), torch.arange(5))
    >>> split.x.shape, len(split)
    (torch.Size([5, 1, 8, 8]), 5)
    """

    stored: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        x, y, got = self.stored, self.y, f"got {tuple(self.stored.shape)} of {self.stored.dtype}"
        floats = x.ndim in (2, 4) and x.dtype == torch.float32
        if x.numel() == 0 or not (floats or (x.ndim == 4 and x.dtype == torch.uint8)):
            wanted = "float32 images (N, C, H, W) or vectors (N, d), or images as uint8"
            raise ValueError(f"x should be {wanted}, with at least one example; {got}")
        if y.shape != x.shape[:1] or y.dtype not in (torch.int64, torch.float32):
            wanted = f"({len(x)},), one int64 label or float32 target for each row of x"
            raise ValueError(f"y should be {wanted}; got {tuple(y.shape)} of {y.dtype}")
        for name, values in (("y", y), ("x", x)):
            low, high = (float(end) for end in torch.aminmax(values))  # NaN, if there is one
            if not isfinite(high - low):
                raise ValueError(f"{name} should be finite; it has NaN or infinite entries")
        if floats and self.is_images and (low < -TOLERANCE or high > 1 + TOLERANCE):
            got = f"{low:g} to {high:g}" + " (divide bytes by 255)" * (high > 2)
            raise ValueError(f"images should have values in [0, 1]; got values from {got}")

    def __repr__(self) -> str:
        return f"Split({len(self):,} inputs of shape {self.shape})"

    def __len__(self) -> int:
        return len(self.stored)

    @cached_property
    def x(self) -> Tensor:
        """All inputs: float32 images (N, C, H, W) in [0, 1], or vectors (N, d)."""
        return self.rows(slice(None))

    def rows(self, index: Tensor | slice) -> Tensor:
        """The inputs x[index], not cached."""
        x = self.stored[index]
        return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x

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
        """The bounds of an input: (0, 1) for images, (None, None) for vectors."""
        return (0.0, 1.0) if self.is_images else (None, None)

    @cached_property
    def hash(self) -> str:
        """sha256 of x and y; bytes and floats of the same numbers have the same hash."""
        digest = hashlib.sha256(f"f4{tuple(self.stored.shape)}".encode())
        for start in range(0, len(self), ROWS):
            add_numbers(digest, self.rows(slice(start, start + ROWS)).numpy(force=True))
        y = self.y.numpy(force=True)
        digest.update(f"{y.dtype.kind}{y.dtype.itemsize}{y.shape}".encode())
        add_numbers(digest, y)
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> "Split":
        """The same examples on `device`."""
        return Split(self.stored.to(device), self.y.to(device))


def subset(total: int, n: int, seed: int = 0) -> Tensor:
    """Sorted indices of `n` of `total` examples, the same for all models: (min(n, total),).

    A smaller subset is part of a larger one.

    >>> subset(10, 4)
    tensor([2, 4, 6, 7])
    >>> subset(3, 10)
    tensor([0, 1, 2])
    """
    if n < 1:
        raise ValueError(f"n should be at least 1; got {n}")
    return torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(total)[:n]))


@dataclass(frozen=True)
class Standardisation:
    """u = (x − mean) / std over the last dimension; fitted on the training part only.

    >>> import torch
    >>> scale = Standardisation.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> scale.apply(torch.tensor([[2.0, 6.0]]))
    tensor([[0., 1.]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        right = all(map(isfinite, self.mean)) and all(0 < std < inf for std in self.std)
        if len(self.mean) != len(self.std) or not self.mean or not right:
            wanted = "one mean and one std for each feature, finite, and every std positive"
            raise ValueError(f"wanted {wanted}; got {[*self.mean]} and {[*self.std]}")

    @classmethod
    def fit(cls, x: Tensor, unscaled: Sequence[int] = ()) -> "Standardisation":
        """Mean and standard deviation of each column of x, (N, d); 0 and 1 for columns `unscaled`.

        A constant column gets std 1, so that it becomes zero and not NaN.
        """
        if x.ndim != 2 or len(x) == 0:
            raise ValueError(f"x should be vectors, (N, d); got {tuple(x.shape)}")
        std, mean = torch.std_mean(x.double(), 0, correction=0)
        constant = (x == x[0]).all(0)  # rounding in the mean can leave a std that is not quite 0
        std = torch.where(constant | (std == 0), torch.ones_like(std), std)
        mean[list(unscaled)], std[list(unscaled)] = 0.0, 1.0
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def apply(self, x: Tensor) -> Tensor:
        """x → u; any shape whose last dimension is the features."""
        mean, std = self._tensors(x)
        return ((x.double() - mean) / std).to(x.dtype)

    def invert(self, u: Tensor) -> Tensor:
        """u → x."""
        mean, std = self._tensors(u)
        return (u.double() * std + mean).to(u.dtype)

    def _tensors(self, x: Tensor) -> Tensor:
        if x.ndim == 0 or x.shape[-1] != len(self.mean):
            wanted = f"the dimension of {len(self.mean)} features"
            raise ValueError(f"x should end in {wanted}; got {tuple(x.shape)}")
        return torch.tensor([self.mean, self.std], dtype=torch.float64, device=x.device)


Task = Literal["classification", "regression"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three splits that share no example, with names and scaling.

    classes: the name of each class number, or None for regression; columns: the names of a table's
    features, or None; standardisation, target_standardisation: how the features of a table and the
    targets of a regression were scaled, or None; categorical: columns of text, whose features
    "column=category" are 1 or 0 and not scaled.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...] | None
    columns: tuple[str, ...] | None = None
    standardisation: Standardisation | None = None
    target_standardisation: Standardisation | None = None
    categorical: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part, split in self.splits.items():
            self.check(split, f"the {part} part of {self.name}")

    def check(self, split: Split, what: str) -> None:
        """Raise unless a split has the input shape, label type and classes of this data set."""
        if split.shape != self.input_shape:
            shapes = f"{split.shape}, the training inputs {self.input_shape}"
            raise ValueError(f"the inputs of {what} have shape {shapes}: they should be the same")
        low, high = (end.item() for end in torch.aminmax(split.y))
        if self.classes is None:
            right, wanted = split.y.dtype == torch.float32, "float32 targets: there are no classes"
        else:
            right = split.y.dtype == torch.int64 and 0 <= low <= high < len(self.classes)
            wanted = f"int64 labels in 0…{len(self.classes) - 1}, one for each class"
        if not right:
            got = f"got {split.y.dtype} from {low} to {high}"
            raise ValueError(f"y of {what} should be {wanted}; {got}")

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

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """{categorical column: its features, exactly one of which is 1}."""
        return {
            name: tuple(c for c in self.columns or () if c.startswith(f"{name}="))
            for name in self.categorical
        }

    @cached_property
    def hash(self) -> str:
        """sha256 of the three splits, in order."""
        parts = "\n".join(split.hash for split in self.splits.values())
        return hashlib.sha256(parts.encode()).hexdigest()

    def to(self, device: torch.device | str) -> "Dataset":
        """The same data set on `device`."""
        return self._map(lambda split: split.to(device))

    def _map(self, change: Callable[[Split], Split], **fields: Any) -> "Dataset":
        parts: dict[str, Any] = {name: change(split) for name, split in self.splits.items()}
        return replace(self, **parts, **fields)


@dataclass(frozen=True)
class Preprocessing:
    """Class names, column names, and how features and targets were scaled.

    A run stores it, to scale other data alike; targets.invert(model(x)) scales outputs back.
    """

    classes: tuple[str, ...] | None
    columns: tuple[str, ...] | None = None
    standardisation: Standardisation | None = None
    targets: Standardisation | None = None
    categorical: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Dataset) -> "Preprocessing":
        """The preprocessing of a data set."""
        scales = data.standardisation, data.target_standardisation
        return cls(data.classes, data.columns, *scales, data.categorical)

    @property
    def square_unit(self) -> float:
        """A squared error of 1, in squared units of the target."""
        return 1.0 if self.targets is None else self.targets.std[0] ** 2

    def to_json(self) -> str:
        """As JSON, without rounding."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Preprocessing":
        """From what :meth:`to_json` wrote; older files have no targets."""
        return TypeAdapter(cls).validate_json(text)

    def apply(self, dataset: Dataset) -> Dataset:
        """Other data, not yet standardised, with these columns, scales and class numbers.

        Columns are matched by name, classes by name or number.
        """
        given, columns = dataset.columns, self.columns
        if columns is not None and given is not None:
            known = {*given, *(c for c in columns if c.partition("=")[0] in dataset.categorical)}
            new = [c for group in dataset.categories.values() for c in group if c not in columns]
            if missing := [name for name in columns if name not in known]:
                lacks = f"{dataset.name} has no column {missing[0]!r}"
                raise ValueError(f"{lacks}, which the model was trained on")
            if strange := [c for c in new if c.partition("=")[0] in self.categorical]:
                column, _, value = strange[0].partition("=")
                has = f"column {column!r} of {dataset.name} has the value {value!r}"
                raise ValueError(f"{has}, which the training data did not have")
            # A category that the other data lack takes the column of zeros that `pad` appends.
            places = [given.index(c) if c in given else len(given) for c in columns]
            dataset = dataset._map(
                lambda s: Split(F.pad(s.x, (0, 1))[:, places], s.y),
                columns=columns,
                categorical=self.categorical,
            )
        dataset, names = self.standardise(dataset), self.classes
        if dataset.classes is None or names is None or dataset.classes == names:
            return dataset
        numbers = {name: number for number, name in enumerate(names)}
        if not set(dataset.classes) <= numbers.keys():
            numbers = {str(number): number for number in range(len(names))}
        if unknown := [name for name in dataset.classes if name not in numbers]:
            others = f"the model was trained on others: {', '.join(names)}"
            raise ValueError(f"{dataset.name} has a class {unknown[0]!r}, and {others}")
        number = torch.tensor([numbers[name] for name in dataset.classes])
        return dataset._map(lambda split: replace(split, y=number[split.y]), classes=names)

    def standardise(self, dataset: Dataset) -> Dataset:
        """Scale the features, and the targets of a regression, if this has a scale."""
        scale, targets = self.standardisation, self.targets
        if scale is None:
            return dataset

        def scaled(split: Split) -> Split:
            y = split.y if targets is None else targets.apply(split.y[:, None])[:, 0]
            return Split(scale.apply(split.x), y)

        return dataset._map(scaled, standardisation=scale, target_standardisation=targets)
