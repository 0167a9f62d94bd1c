"""From the examples of a source to a data set: parts held out, pixels and features scaled."""

import json
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ._dataset import Dataset, Examples, Parts, Split, Standardisation
from ._splitting import hold_out


@dataclass(frozen=True)
class Meaning:
    """Class names by number, columns in their order, and how features and targets were scaled.

    A run keeps it, so that other data can be given to its model in the same numbers, and what a
    regression answers can be read in the units of the targets: targets.invert(model(x)).
    """

    classes: tuple[str, ...] | None
    columns: tuple[str, ...] | None = None
    standardisation: Standardisation | None = None
    targets: Standardisation | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> "Meaning":
        """That of the data that a model is trained on."""
        return cls(
            dataset.classes, dataset.columns, dataset.standardisation,
            dataset.target_standardisation,
        )  # fmt: skip

    def to_json(self) -> str:
        """As JSON, to the last digit."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Meaning":
        """From what :meth:`to_json` wrote."""
        entries = json.loads(text)
        return cls(
            _tuple(entries["classes"]), _tuple(entries["columns"]),
            _scale(entries["standardisation"]), _scale(entries.get("targets")),
        )  # fmt: skip

    def give(self, dataset: Dataset) -> Dataset:
        """Other data, as they were before any standardisation, in the numbers of these."""
        return self._numbered(self.scale(self._ordered(dataset)))

    def _ordered(self, dataset: Dataset) -> Dataset:
        """The columns that the model knows, by their names."""
        if self.columns is None or dataset.columns in (None, self.columns):
            return dataset
        if missing := [name for name in self.columns if name not in dataset.columns]:
            raise ValueError(
                f"{dataset.name} has no column {missing[0]!r}, which the model was trained on"
            )
        places = torch.tensor([dataset.columns.index(name) for name in self.columns])
        parts = {name: Split(s.x[:, places], s.y) for name, s in dataset.splits.items()}
        return replace(dataset, columns=self.columns, **parts)  # type: ignore[arg-type]

    def scale(self, dataset: Dataset) -> Dataset:
        """Features, and the targets of a regression, standardised by these numbers if by any."""
        scale, targets = self.standardisation, self.targets
        if scale is None:
            return dataset

        def scaled(y: Tensor) -> Tensor:
            return y if targets is None else targets.apply(y[:, None])[:, 0]

        parts = {name: Split(scale.apply(s.x), scaled(s.y)) for name, s in dataset.splits.items()}
        return replace(
            dataset, standardisation=scale, target_standardisation=targets,
            **parts,  # type: ignore[arg-type]
        )  # fmt: skip

    def _numbered(self, dataset: Dataset) -> Dataset:
        """Classes are the same if their names are, or if they are called by these numbers."""
        names = self.classes
        if dataset.classes is None or names is None or dataset.classes == names:
            return dataset
        numbered = {str(number): number for number in range(len(names))}
        known = {name: number for number, name in enumerate(names)}
        known = known if set(dataset.classes) <= known.keys() else numbered
        if strange := [name for name in dataset.classes if name not in known]:
            raise ValueError(
                f"{dataset.name} has a class {strange[0]!r}, and the model was trained on others: "
                f"{', '.join(names)}"
            )
        number = torch.tensor([known[name] for name in dataset.classes])
        parts = {name: replace(s, y=number[s.y]) for name, s in dataset.splits.items()}
        return replace(dataset, classes=names, **parts)  # type: ignore[arg-type]


def _tuple(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _scale(entries: dict[str, list[float]] | None) -> Standardisation | None:
    if entries is None:
        return None
    return Standardisation(tuple(entries["mean"]), tuple(entries["std"]))


ROWS = 1024  # copied at a time, so that no second copy of everything is made


def assemble(
    name: str,
    parts: Parts,
    *,
    validation: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    standardise: bool | None = None,
) -> Dataset:
    """A data set of `parts`; a part that the source lacks is held out of its training examples.

    The test part is never touched by the validation part, by the seed that chooses it, or by the
    fit of the standardisation. `standardise` None: vectors are, images are not.
    """
    stratified = parts.classes is not None
    kept = np.arange(len(parts.train))
    splits: dict[str, Split] = {}
    wanted = (("test", parts.test, test), ("validation", parts.validation, validation))
    for number, (part, given, fraction) in enumerate(wanted):
        if given is not None:
            splits[part] = _split(given, np.arange(len(given)), stratified)
            continue
        labels = parts.train.y[kept] if stratified else None
        held = hold_out(len(kept), fraction, seed=(seed, number), labels=labels)
        splits[part] = _split(parts.train, kept[held], stratified)
        kept = kept[~held]
    dataset = Dataset(
        name, _split(parts.train, kept, stratified), splits["validation"], splits["test"],
        parts.classes, parts.columns,
    )  # fmt: skip
    if standardise is None:
        standardise = not dataset.train.is_images
    return standardised(dataset) if standardise else dataset


def standardised(dataset: Dataset) -> Dataset:
    """The features, and the targets of a regression, by the statistics of the training part."""
    if dataset.train.is_images:
        raise ValueError(
            f"standardise is for vectors, and {dataset.name} holds images: their pixels stay in "
            "[0, 1], and models normalise inside"
        )
    features = Standardisation.fit(dataset.train.x)
    targets = None
    if dataset.task == "regression":
        targets = Standardisation.fit(dataset.train.y[:, None])

    return Meaning(dataset.classes, dataset.columns, features, targets).scale(dataset)


def _split(examples: Examples, rows: np.ndarray, classes: bool) -> Split:
    y = examples.y[rows].astype(np.int64 if classes else np.float32)
    return Split(_inputs(examples.x, rows), torch.from_numpy(y))


def _inputs(x: np.ndarray, rows: np.ndarray) -> Tensor:
    """Rows of x: the bytes of images as they are, everything else as float32."""
    keep = x.dtype == np.uint8 and x.ndim == 4
    # Memory from torch: numpy asks for huge pages, which a virtual machine can be slow to find.
    out = torch.empty((len(rows), *x.shape[1:]), dtype=torch.uint8 if keep else torch.float32)
    for start in range(0, len(rows), ROWS):
        out[start : start + ROWS].numpy()[:] = x[rows[start : start + ROWS]]
    return out
