"""From the examples of a source to a data set: parts held out, pixels and features scaled."""

import numpy as np
import torch
from torch import Tensor

from .dataset import Dataset
from .holdout import hold_out
from .meaning import Meaning
from .parts import Examples, Parts
from .split import Split
from .standardisation import Standardisation

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
