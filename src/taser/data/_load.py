"""A data set by its name or from a file."""

from collections.abc import Sequence
from pathlib import Path

from ._dataset import Dataset, Parts, Task
from ._preprocessing import assemble
from ._readers import read_folder, read_npz, read_table
from ._registry import find, unknown_data

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
        at all, then the validation part of what is left for training; of each class alike.
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
    known = find(name_or_path) if isinstance(name_or_path, str) else None
    if known is not None:
        _refuse(known.name, size=size, target=target, ignore=ignore, task=task)
        name, parts = known.name, known.read(root, verify=verify)
    else:
        path = _existing(name_or_path)
        name = path.resolve().stem if path.is_file() else path.resolve().name
        parts = _read(path, size, target, ignore, task)
    return assemble(
        name, parts, validation=validation, test=test, seed=seed, standardise=standardise
    )


def _read(
    path: Path,
    size: int | tuple[int, int] | None,
    target: str | None,
    ignore: Sequence[str],
    task: Task | None,
) -> Parts:
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


def _existing(name_or_path: Path | str) -> Path:
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    if isinstance(name_or_path, Path) or path.name != name_or_path or path.suffix in SUFFIXES:
        raise FileNotFoundError(f"there is no file or folder at {path}")
    raise unknown_data(name_or_path)


def _refuse(what: str, **options: object) -> None:
    """Raise for an option that would change nothing, rather than let it pass unnoticed."""
    if given := [name for name, value in options.items() if value is not None and value != ()]:
        raise ValueError(f"{what} takes no {', '.join(given)}")
