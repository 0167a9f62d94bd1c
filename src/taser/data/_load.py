"""A data set by its name or from a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ._cache import read_cache
from ._dataset import Dataset, Preprocessing, Split, Standardisation, Task
from ._readers import RawDataset, read_folder, read_npz, read_table
from ._registry import Builtin, find, unknown_dataset

SUFFIXES = (".npz", ".csv", ".parquet")


def load(
    name_or_path: Path | str, *, root: Path | str | None = None, validation: float = 0.1,
    test: float = 0.2, seed: int = 0, size: int | tuple[int, int] | None = None,
    target: str | None = None, ignore: Sequence[str] = (), task: Task | None = None,
    standardise: bool | None = None,
) -> Dataset:  # fmt: skip
    """A data set as tensors, with splits that are the same on every machine.

    name_or_path: a name ("digits", "cifar10", …), a folder of images by class, an .npz, .csv or
    .parquet; a name comes first: a folder that is called like one is "./digits".

    root: the cache of fetched data sets; validation, test, seed: the shares that are held out where
    the source has no such part: the test part first, then the validation part of what is left; the
    same share of each class; size: for a folder, (H, W) or one number to resize images to; target,
    ignore, task: for a table, the column to predict, columns to leave out, and "classification" or
    "regression" where it should not be guessed; standardise: whether vectors are standardised by
    their training part, by default they are.

    >>> digits = load("digits")
    >>> digits.input_shape, len(digits.train), len(digits.validation), len(digits.test)
    ((1, 8, 8), 1295, 143, 359)
    """
    path = Path(name_or_path).expanduser()
    spec = find(name_or_path) if isinstance(name_or_path, str) else None
    suffix = path.suffix.lower()

    def refuse(what: str, **options: object) -> None:
        """Raise for an option that would change nothing, rather than let it pass unnoticed."""
        if given := [name for name, value in options.items() if value not in (None, ())]:
            raise ValueError(f"{what} takes no {', '.join(given)}")

    of_table = {"target": target, "ignore": tuple(ignore), "task": task}
    if spec is not None:
        refuse(spec.name, size=size, **of_table)
        raw = spec.read() if isinstance(spec, Builtin) else read_cache(spec, root)
    elif not path.exists():
        if path.name == name_or_path and path.suffix not in SUFFIXES:
            raise unknown_dataset(name_or_path)
        raise FileNotFoundError(f"there is no file or folder at {path}")
    elif path.is_dir():
        refuse("a folder of images", **of_table)
        raw = read_folder(path, size=size)
    elif not path.is_file():
        raise ValueError(f"{path} is no regular file")
    elif suffix == ".npz":
        refuse("an .npz", size=size, **of_table)
        raw = read_npz(path)
    elif suffix in SUFFIXES:
        refuse("a table", size=size)
        raw = read_table(path, target=target, ignore=ignore, task=task)
    else:
        wanted = f"a folder of images or end in {', '.join(SUFFIXES)}"
        raise ValueError(f"a data set should be {wanted}; got {path}")
    path = path.resolve()
    name = spec.name if spec is not None else path.stem if path.is_file() else path.name
    dataset = _split(name, raw, {"test": test, "validation": validation}, seed)
    if dataset.train.is_images and standardise:
        why = "their pixels stay in [0, 1], and models normalise inside"
        raise ValueError(f"standardise is for vectors, and {name} holds images: {why}")
    if dataset.train.is_images or standardise is False:
        return dataset
    features = Standardisation.fit(dataset.train.x)
    y = dataset.train.y[:, None]
    targets = Standardisation.fit(y) if dataset.task == "regression" else None
    return Preprocessing(raw.classes, raw.columns, features, targets).standardise(dataset)


ROWS = 1024  # copied at a time, so that no second copy of everything is made


def _split(name: str, raw: RawDataset, shares: dict[str, float], seed: int) -> Dataset:
    """A data set of tensors; a part that the source lacks is held out of its training examples."""
    train = raw.parts["train"]
    kept = np.arange(len(train[1]))
    splits: dict[str, Any] = {}
    for number, (part, share) in enumerate(shares.items()):
        if part in raw.parts:
            splits[part] = _tensors(raw, part, np.arange(len(raw.parts[part][1])))
            continue
        labels = None if raw.classes is None else train[1][kept]
        held = hold_out(len(kept), share, seed=(seed, number), labels=labels)
        splits[part] = _tensors(raw, "train", kept[held])
        kept = kept[~held]
    splits["train"] = _tensors(raw, "train", kept)
    return Dataset(name, **splits, classes=raw.classes, columns=raw.columns)


def _tensors(raw: RawDataset, part: str, rows: np.ndarray) -> Split:
    """Rows of a part: the bytes of images as they are, everything else as float32."""
    x, y = raw.parts[part]
    keep = x.dtype == np.uint8 and x.ndim == 4
    # Memory from torch: numpy asks for huge pages, which a virtual machine can be slow to find.
    out = torch.empty((len(rows), *x.shape[1:]), dtype=torch.uint8 if keep else torch.float32)
    for start in range(0, len(rows), ROWS):
        out[start : start + ROWS].numpy()[:] = x[rows[start : start + ROWS]]
    labels = y[rows].astype(np.float32 if raw.classes is None else np.int64)
    return Split(out, torch.from_numpy(labels))


def hold_out(
    n: int, fraction: float, *, seed: int | tuple[int, ...], labels: np.ndarray | None = None
) -> np.ndarray:
    """A mask (n,) of about `fraction` of the examples; with class labels (n,), of each class."""
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"the fraction to hold out should lie strictly in (0, 1); got {fraction}")
    # Raw words of a bit generator are the one stream that numpy promises never to change.
    order = np.argsort(np.random.PCG64(seed).random_raw(n), kind="stable")
    groups = np.zeros(n, dtype=np.int64) if labels is None else labels
    held = np.zeros(n, dtype=bool)
    for group in np.unique(groups):
        members = order[groups[order] == group]
        held[members[: round(fraction * len(members))]] = True
    if not held.any() or held.all():
        whose = "examples" if labels is None else "examples in these classes"
        raise ValueError(f"{n} {whose} are too few to hold out {fraction:g}: a part would be empty")
    return held
