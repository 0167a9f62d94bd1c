"""A data set by its name or from a file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ._cache import read_cache
from ._dataset import Dataset, Examples, RawDataset, Split, Standardisation, Task
from ._preprocessing import Preprocessing
from ._readers import read_folder, read_npz, read_table
from ._registry import Builtin, find, unknown_dataset
from ._splitting import hold_out

SUFFIXES = (".npz", ".csv", ".parquet")


def load(
    name_or_path: Path | str,
    *,
    root: Path | str | None = None,
    validation: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    verify: bool = False,
    size: int | tuple[int, int] | None = None,
    target: str | None = None,
    ignore: Sequence[str] = (),
    task: Task | None = None,
    standardise: bool | None = None,
) -> Dataset:
    """A data set as tensors, with splits that are the same on every machine.

    name_or_path
        A name ("digits", "cifar10", …), a folder of images by class, an .npz, .csv or .parquet. A
        name comes first: a folder that is called like one is "./digits".
    root, verify
        The cache of fetched data sets, and whether to hash every byte of it rather than to trust
        sizes and checksums.
    validation, test, seed
        The shares that are held out where the source has no such part: the test part first, if
        at all, then the validation part of what is left for training; the same share of each class.
    size
        For a folder: (H, W) or one number to resize images to.
    target, ignore, task
        For a table: the column to predict, columns to leave out, and "classification" or
        "regression" where it should not be guessed.
    standardise
        Whether vectors are standardised by their training part; by default they are.

    >>> digits = load("digits")
    >>> digits.input_shape, len(digits.train), len(digits.validation), len(digits.test)
    ((1, 8, 8), 1295, 143, 359)
    """
    ignore = tuple(ignore)
    path = Path(name_or_path).expanduser()
    spec = find(name_or_path) if isinstance(name_or_path, str) else None
    if spec is None and not path.exists():
        if path.name == name_or_path and path.suffix not in SUFFIXES:
            raise unknown_dataset(name_or_path)
        raise FileNotFoundError(f"there is no file or folder at {path}")
    if spec is not None:
        _refuse(spec.name, size=size, target=target, ignore=ignore, task=task)
        name = spec.name
        raw = spec.read() if isinstance(spec, Builtin) else read_cache(spec, root, verify=verify)
    else:
        name = path.resolve().stem if path.is_file() else path.resolve().name
        raw = _read(path, size, target, ignore, task)
    return _split(name, raw, validation, test, seed, standardise)


def _read(
    path: Path,
    size: int | tuple[int, int] | None,
    target: str | None,
    ignore: Sequence[str],
    task: Task | None,
) -> RawDataset:
    if path.is_dir():
        _refuse("a folder of images", target=target, ignore=ignore, task=task)
        return read_folder(path, size=size)
    if path.suffix.lower() == ".npz":
        _refuse("an .npz", size=size, target=target, ignore=ignore, task=task)
        return read_npz(path)
    if path.suffix.lower() in SUFFIXES:
        _refuse("a table", size=size)
        return read_table(path, target=target, ignore=ignore, task=task)
    raise ValueError(
        f"a data set should be a folder of images or end in {', '.join(SUFFIXES)}; got {path}"
    )


def _refuse(what: str, **options: object) -> None:
    """Raise for an option that would change nothing, rather than let it pass unnoticed."""
    if given := [name for name, value in options.items() if value is not None and value != ()]:
        raise ValueError(f"{what} takes no {', '.join(given)}")


ROWS = 1024  # copied at a time, so that no second copy of everything is made


def _split(
    name: str, raw: RawDataset, validation: float, test: float, seed: int, standardise: bool | None
) -> Dataset:
    """A data set of tensors; a part that the source lacks is held out of its training examples.

    Neither the validation share nor the fit of the standardisation changes the test part.
    `standardise` None: vectors are, images are not.
    """
    stratified = raw.classes is not None
    kept = np.arange(len(raw.train))
    splits: dict[str, Split] = {}
    wanted = (("test", raw.test, test), ("validation", raw.validation, validation))
    for number, (part, own, fraction) in enumerate(wanted):
        if own is not None:
            splits[part] = _tensors(own, np.arange(len(own)), stratified)
            continue
        labels = raw.train.y[kept] if stratified else None
        held = hold_out(len(kept), fraction, seed=(seed, number), labels=labels)
        splits[part] = _tensors(raw.train, kept[held], stratified)
        kept = kept[~held]
    dataset = Dataset(
        name, _tensors(raw.train, kept, stratified), splits["validation"], splits["test"],
        raw.classes, raw.columns,
    )  # fmt: skip
    if dataset.train.is_images and standardise:
        raise ValueError(
            f"standardise is for vectors, and {name} holds images: their pixels stay in [0, 1], "
            "and models normalise inside"
        )
    if dataset.train.is_images or standardise is False:
        return dataset
    y = dataset.train.y[:, None]
    targets = Standardisation.fit(y) if dataset.task == "regression" else None
    features = Standardisation.fit(dataset.train.x)
    return Preprocessing(raw.classes, raw.columns, features, targets).standardise(dataset)


def _tensors(examples: Examples, rows: np.ndarray, classes: bool) -> Split:
    y = examples.y[rows].astype(np.int64 if classes else np.float32)
    return Split(_rows(examples.x, rows), torch.from_numpy(y))


def _rows(x: np.ndarray, rows: np.ndarray) -> Tensor:
    """Rows of x: the bytes of images as they are, everything else as float32."""
    keep = x.dtype == np.uint8 and x.ndim == 4
    # Memory from torch: numpy asks for huge pages, which a virtual machine can be slow to find.
    out = torch.empty((len(rows), *x.shape[1:]), dtype=torch.uint8 if keep else torch.float32)
    for start in range(0, len(rows), ROWS):
        out[start : start + ROWS].numpy()[:] = x[rows[start : start + ROWS]]
    return out
