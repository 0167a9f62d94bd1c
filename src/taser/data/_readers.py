"""Data sets of the user's own: folders of images, .npz files, tables as CSV or Parquet."""

import csv
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import numpy as np
from PIL import Image, ImageOps

from taser._names import hint

from ._dataset import Examples, RawDataset, Task
from ._splitting import encode_labels


def pyarrow_parquet() -> Any:
    """The module pyarrow.parquet, or an error that says how to get it."""
    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(
            "reading Parquet files needs pyarrow, which is not installed: pip install pyarrow"
        ) from error


PARTS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}

SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
)
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")  # others may start a program
GREY = frozenset(("1", "L"))
DEEP = frozenset(("I", "I;16", "I;16B", "I;16L", "F"))  # more than eight bits for a channel


def read_folder(path: Path, *, size: int | tuple[int, int] | None = None) -> RawDataset:
    """Images at path/class/*, or at path/train/class/*, path/test/class/* and so on.

    size: (H, W), or one number for both: images are cut to that shape about their centre and
    resized. Without it they all have to be of one size. Grey if all are grey, otherwise RGB.
    """
    roots = {p: path / n for p, names in PARTS.items() for n in names if (path / n).is_dir()}
    if "train" not in roots:
        roots = {"train": path}
    files = {part: _images_by_class(root) for part, root in roots.items()}
    classes = tuple(files["train"])
    for part, by_class in files.items():
        if unknown := sorted(set(by_class) - set(classes)):
            raise ValueError(
                f"{roots[part]} has folders of classes that {roots['train']} lacks: "
                f"{', '.join(unknown)}"
            )
    every = [file for by_class in files.values() for group in by_class.values() for file in group]
    grey, shape = _common_form(every, size)
    parts = {part: _decode(by_class, classes, grey, shape) for part, by_class in files.items()}
    return RawDataset(parts["train"], parts.get("validation"), parts.get("test"), classes)


def _images_by_class(root: Path) -> dict[str, list[Path]]:
    """The images of each class, both in the order of their names."""
    folders = sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))
    if len(folders) < 2:
        raise ValueError(
            f"{root} should hold one folder of images for each class, and at least two of them; "
            f"got {len(folders)}"
        )
    files = {
        folder.name: sorted(
            file for file in folder.iterdir()
            if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
        )
        for folder in folders
    }  # fmt: skip
    if empty := [name for name, group in files.items() if not group]:
        raise ValueError(
            f"no images in the class folder{'s' * (len(empty) > 1)} {', '.join(empty)} of {root}; "
            f"wanted files ending in {', '.join(sorted(SUFFIXES))}"
        )
    return files


def _common_form(
    files: list[Path], size: int | tuple[int, int] | None
) -> tuple[bool, tuple[int, int]]:
    """Whether all are grey, and (H, W); from the headers, so before the long part of the work."""
    if size is not None:
        shape = (size, size) if isinstance(size, int) else size
        if len(shape) != 2 or min(shape) < 1:
            raise ValueError(f"size should be (H, W) or one number, at least 1; got {size}")
    grey, first = True, None
    for file in files:
        with _opened(file) as image:
            if image.mode in DEEP:
                raise ValueError(
                    f"{file} has more than eight bits a channel (mode {image.mode}); convert it to "
                    "eight, since how to scale it to [0, 1] is not known"
                )
            grey = grey and image.mode in GREY
            first = first or image.size
            if size is None and image.size != first:
                raise ValueError(
                    "the images should be of one size, or size= (data.size in a recipe) be given: "
                    f"{files[0]} is {first[0]}×{first[1]}, {file} is "
                    f"{image.size[0]}×{image.size[1]}"
                )
    assert first is not None  # every class has an image
    return grey, (first[1], first[0]) if size is None else shape


def _decode(
    by_class: dict[str, list[Path]], classes: tuple[str, ...], grey: bool, shape: tuple[int, int]
) -> Examples:
    files = [(file, classes.index(name)) for name, group in by_class.items() for file in group]
    x = np.empty((len(files), 1 if grey else 3, *shape), dtype=np.uint8)
    for row, (file, _) in zip(x, files, strict=True):
        with _opened(file) as image:
            image = image.convert("L" if grey else "RGB")
            if image.size != (shape[1], shape[0]):
                image = ImageOps.fit(image, (shape[1], shape[0]), Image.Resampling.BICUBIC)
            pixels = np.asarray(image)
        row[:] = pixels[None] if grey else pixels.transpose(2, 0, 1)
    return Examples(x, np.array([label for _, label in files]))


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    try:
        with Image.open(file, formats=FORMATS) as image:
            yield image
    except (OSError, SyntaxError) as error:
        raise ValueError(
            f"{file} is no image that can be read, or is truncated: {error}"
        ) from error


def read_npz(path: Path) -> RawDataset:
    """x and y; or x_train and y_train, with x_test, y_test, x_validation, y_validation if there.

    x: images (N, C, H, W) or (N, H, W), as bytes or as floats in [0, 1], or vectors (N, d).
    y: whole numbers or strings are classes; floats are the targets of a regression.
    """
    arrays = _arrays(path)
    suffixes = {part: [f"_{name}" for name in names] for part, names in PARTS.items()}
    if "x" in arrays and "y" in arrays:
        suffixes = {"train": [""]}
    found = {
        part: suffix
        for part, options in suffixes.items()
        for suffix in options
        if f"x{suffix}" in arrays and f"y{suffix}" in arrays
    }
    if "train" not in found:
        raise ValueError(
            f"{path} should hold arrays x and y, or x_train and y_train; "
            f"got {', '.join(arrays) or 'none'}"
        )
    xs = [_inputs(arrays[f"x{suffix}"], f"x{suffix}") for suffix in found.values()]
    ys = [_targets(arrays[f"y{suffix}"], f"y{suffix}") for suffix in found.values()]
    for suffix, x, y in zip(found.values(), xs, ys, strict=True):
        if len(x) != len(y):
            raise ValueError(f"x{suffix} has {len(x)} rows, but y{suffix} has {len(y)}")
    classes = None
    if any(y.dtype.kind != "f" for y in ys):
        ys, classes = encode_labels(ys)
    parts = dict(zip(found, map(Examples, xs, ys), strict=True))
    return RawDataset(parts["train"], parts.get("validation"), parts.get("test"), classes)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        # No pickles: an array of objects could run code.
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is truncated, is no .npz file or holds pickled objects: {error}"
        ) from error


def _inputs(x: np.ndarray, name: str) -> np.ndarray:
    if x.dtype.kind not in "buif":
        raise ValueError(f"{name} should hold numbers; got {x.dtype}")
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        raise ValueError(
            f"images should be (N, C, H, W); {name} is {x.shape}, which looks like (N, H, W, C): "
            "save it as x.transpose(0, 3, 1, 2)"
        )
    if x.ndim not in (2, 3, 4):
        raise ValueError(
            f"{name} should be images (N, C, H, W) or (N, H, W), or vectors (N, d); got {x.shape}"
        )
    return x[:, None] if x.ndim == 3 else x


def _targets(y: np.ndarray, name: str) -> np.ndarray:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "buifU":
        raise ValueError(
            f"{name} should be (N,), labels or targets; got {y.shape} of {y.dtype}"
            + (" (one-hot? y.argmax(1))" if y.ndim == 2 else "")
        )
    return y


FEW = 20  # distinct whole numbers: up to here a target is taken for a class


def read_table(
    path: Path, *, target: str | None, ignore: Sequence[str] = (), task: Task | None = None
) -> RawDataset:
    """The columns of numbers as features, in their order, and the column `target` as y.

    ignore: columns to leave out. task: whether the target is a class or a number; by default a
    class if it is text or has at most 20 distinct values, all whole.
    """
    if task is not None and task not in get_args(Task):
        raise ValueError(f"task should be one of {', '.join(get_args(Task))}; got {task!r}")
    table = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    if target is None:
        raise ValueError(
            f"a table needs target=, the column to predict; {path} has {', '.join(table)}"
        )
    for name in (target, *ignore):
        if name not in table:
            raise ValueError(
                f"{path} has no column {name!r}{hint(name, table)}; it has {', '.join(table)}"
            )
    columns = tuple(name for name in table if name != target and name not in ignore)
    if not columns:
        raise ValueError(f"{path} has no column left for the features, only {target!r}")
    x = np.stack([_numbers(table[name], name, path) for name in columns], 1)
    y, classes = table[target], None
    if task is None:
        task = "classification" if _looks_like_classes(y) else "regression"
    if task == "regression":
        y = _numbers(y, target, path)
    elif (missing := np.flatnonzero(y == "")).size:
        raise ValueError(f"column {target!r} of {path} has no label in row {missing[0] + 1}")
    else:
        (y,), classes = encode_labels([_whole_numbers(y)])
    return RawDataset(Examples(x, y), classes=classes, columns=columns)


def _floats(column: np.ndarray) -> np.ndarray | None:
    """Text as numbers; None if an entry is none."""
    try:
        return column.astype(np.float64)
    except ValueError:
        return None


def _looks_like_classes(column: np.ndarray) -> bool:
    values = _floats(column)
    if values is None:
        return True
    values = np.unique(values)
    return len(values) <= FEW and bool((values == np.round(values)).all())


def _whole_numbers(column: np.ndarray) -> np.ndarray:
    """Whole numbers as numbers, so that 10 comes after 9; everything else as the text it is."""
    values = _floats(column)
    # From 2^53 on, neighbours would become one.
    whole = values is not None and (abs(values) < 2**53) & (values == np.round(values))
    return values.astype(np.int64) if values is not None and np.all(whole) else column


def _numbers(column: np.ndarray, name: str, path: Path) -> np.ndarray:
    values = _floats(column)
    if values is not None and np.isfinite(values).all():
        return values
    singles = (_floats(column[row : row + 1]) for row in range(len(column)))
    row = next(r for r, value in enumerate(singles) if value is None or not np.isfinite(value))
    raise ValueError(
        f"column {name!r} of {path} should hold finite numbers only; row {row + 1} has "
        f"{str(column[row])!r}. Encode it, drop those rows, or leave it out with ignore={[name]!r} "
        "(data.ignore in a recipe)"
    )


def _csv(path: Path) -> dict[str, np.ndarray]:
    """The columns as text; the first row names them."""
    with open(path, newline="", encoding="utf-8-sig") as stream:
        rows = [row for row in csv.reader(stream) if row]
    if len(rows) < 2:
        raise ValueError(f"{path} should have a row of column names and rows below; it is empty")
    names = [name.strip() for name in rows[0]]
    if len(set(names)) != len(names):
        raise ValueError(f"{path} has two columns of one name: {', '.join(names)}")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(names):
            raise ValueError(f"{path} has {len(names)} columns, but {len(row)} in row {number}")
    return {
        name: np.array([entry.strip() for entry in column])
        for name, column in zip(names, zip(*rows[1:], strict=True), strict=True)
    }


def _parquet(path: Path) -> dict[str, np.ndarray]:
    parquet = pyarrow_parquet()
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is truncated or is no Parquet file: {error}") from error
    # As text, like CSV, so that one set of rules decides what is a number and what is missing.
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return {
        name: np.array(["" if entry is None else str(entry) for entry in column])
        for name, column in columns.items()
    }
