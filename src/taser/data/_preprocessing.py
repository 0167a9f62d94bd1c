"""What was done to the training data of a model, to be applied to other data."""

import json
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from ._dataset import Dataset, Split, Standardisation


@dataclass(frozen=True)
class Preprocessing:
    """Class names by number, columns in their order, and how features and targets were scaled.

    A run keeps it, so that its model can be given other data on the same scale, and the outputs of
    a regression can be read in the units of the targets: targets.invert(model(x)).
    """

    classes: tuple[str, ...] | None
    columns: tuple[str, ...] | None = None
    standardisation: Standardisation | None = None
    targets: Standardisation | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> "Preprocessing":
        """That of the data that a model is trained on."""
        return cls(
            dataset.classes, dataset.columns, dataset.standardisation,
            dataset.target_standardisation,
        )  # fmt: skip

    def to_json(self) -> str:
        """As JSON, to the last digit."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Preprocessing":
        """From what :meth:`to_json` wrote; older files have no targets."""
        entries = json.loads(text)
        names = (entries["classes"], entries["columns"])
        classes, columns = (name and tuple(name) for name in names)
        features, targets = (
            scale and Standardisation(tuple(scale["mean"]), tuple(scale["std"]))
            for scale in (entries["standardisation"], entries.get("targets"))
        )
        return cls(classes, columns, features, targets)

    def apply(self, dataset: Dataset) -> Dataset:
        """Other data, not yet standardised, with these columns, scales and class numbers."""
        return self._encode_classes(self.standardise(self._order_columns(dataset)))

    def _order_columns(self, dataset: Dataset) -> Dataset:
        """The columns of the training data, found by their names."""
        if self.columns is None or dataset.columns in (None, self.columns):
            return dataset
        if missing := [name for name in self.columns if name not in dataset.columns]:
            raise ValueError(
                f"{dataset.name} has no column {missing[0]!r}, which the model was trained on"
            )
        places = torch.tensor([dataset.columns.index(name) for name in self.columns])
        parts = {name: Split(s.x[:, places], s.y) for name, s in dataset.splits.items()}
        return replace(dataset, columns=self.columns, **parts)  # type: ignore[arg-type]

    def standardise(self, dataset: Dataset) -> Dataset:
        """Scale the features, and the targets of a regression, by these numbers, if any."""
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

    def _encode_classes(self, dataset: Dataset) -> Dataset:
        """Classes are the same if their names are, or if they are called by these numbers."""
        names = self.classes
        if dataset.classes is None or names is None or dataset.classes == names:
            return dataset
        numbered = {str(number): number for number in range(len(names))}
        known = {name: number for number, name in enumerate(names)}
        known = known if set(dataset.classes) <= known.keys() else numbered
        if unknown := [name for name in dataset.classes if name not in known]:
            raise ValueError(
                f"{dataset.name} has a class {unknown[0]!r}, and the model was trained on others: "
                f"{', '.join(names)}"
            )
        number = torch.tensor([known[name] for name in dataset.classes])
        parts = {name: replace(s, y=number[s.y]) for name, s in dataset.splits.items()}
        return replace(dataset, classes=names, **parts)  # type: ignore[arg-type]
