"""Load a data set by its name, or from a folder of images, an .npz, or a table."""

import csv
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image, ImageOps

from taser._files import LARGEST
from taser._names import hint

from ._cache import read_cache
from ._dataset import Dataset, Preprocessing, Split, Standardisation, Task
from ._published import (
    Builtin,
    Examples,
    RawDataset,
    channels_first,
    find,
    pyarrow_parquet,
    unknown_dataset,
)

SUFFIXES = (".npz", ".csv", ".parquet")
CATEGORIES = 100  # most categories of a column; with more it is probably a name
MISSING = ("", "nan", "na", "n/a", "<na>", "null")  # a label that is none, in lower case
Places = tuple[str, Sequence[int]]  # what a file counts, "line" or "row", and the number of each


def load(
    name_or_path: Path | str, *, root: Path | str | None = None, validation: float = 0.1,
    test: float = 0.2, seed: int = 0, size: int | tuple[int, int] | None = None,
    target: str | None = None, ignore: Sequence[str] = (), task: Task | None = None,
    standardise: bool | None = None,
) -> Dataset:  # fmt: skip
    """A data set as tensors, with splits that are the same on every machine.

    name_or_path: a name ("digits", "cifar10", …), a folder of images by class, an .npz, .csv or
    .parquet; write "./digits" for a folder with the name of a data set.

    root: the cache of fetched data sets; validation, test, seed: the shares to hold out if the
    source has no such part, test first, validation from the rest, the same share of each class;
    size: for a folder, (H, W) or one number to resize images to; target, ignore, task: for a table,
    the column to predict, columns to leave out, and "classification" or "regression" to replace the
    guess; standardise: whether to standardise vectors by the training part (None: yes).

    >>> digits = load("digits")
    >>> digits.input_shape, len(digits.train), len(digits.validation), len(digits.test)
    ((1, 8, 8), 1295, 143, 359)
    """
    path = Path(name_or_path).expanduser()
    spec = find(name_or_path) if isinstance(name_or_path, str) else None
    suffix = path.suffix.lower()

    def refuse(what: str, **options: object) -> None:
        """Raise for an option that would have no effect."""
        if given := [name for name, value in options.items() if value not in (None, ())]:
            raise ValueError(f"{what} takes no {', '.join(given)}")

    of_table = {"target": target, "ignore": tuple(ignore)}
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
    if task is not None and (task == "regression") != (raw.classes is None):
        raise ValueError(f"task={task} does not fit {name}, whose targets are for the other task")
    dataset = _split(name, raw, {"test": test, "validation": validation}, seed)
    if dataset.train.is_images and standardise:
        why = "their pixels stay in [0, 1], and models normalise inside"
        raise ValueError(f"standardise is for vectors, and {name} holds images: {why}")
    if dataset.train.is_images or standardise is False:
        return dataset
    groups = dataset.categories.values()
    places = [(dataset.columns or ()).index(column) for group in groups for column in group]
    features = Standardisation.fit(dataset.train.x, places)
    y = dataset.train.y[:, None]
    targets = Standardisation.fit(y) if dataset.task == "regression" else None
    return Preprocessing(raw.classes, raw.columns, features, targets).standardise(dataset)


ROWS = 1024  # copied at a time, so that no second copy of everything is made


def _split(name: str, raw: RawDataset, shares: dict[str, float], seed: int) -> Dataset:
    """A data set of tensors; a missing part is held out of the training examples."""
    train = raw.parts["train"]
    kept = np.arange(len(train[1]))
    splits: dict[str, Any] = {}
    for number, (part, share) in enumerate(shares.items()):
        if part in raw.parts:
            splits[part] = _tensors(raw, part, np.arange(len(raw.parts[part][1])))
            continue
        labels = None if raw.classes is None else train[1][kept]
        held = hold_out(len(kept), share, seed=(seed, number), labels=labels, name=name)
        splits[part] = _tensors(raw, "train", kept[held])
        kept = kept[~held]
    splits["train"] = _tensors(raw, "train", kept)
    return Dataset(
        name, **splits, classes=raw.classes, columns=raw.columns, categorical=raw.categorical
    )


def _tensors(raw: RawDataset, part: str, rows: np.ndarray) -> Split:
    """Rows of a part: images in bytes stay bytes, everything else becomes float32."""
    x, y = raw.parts[part]
    keep = x.dtype == np.uint8 and x.ndim == 4
    # torch allocates: numpy requests huge pages, which can be slow on a virtual machine.
    out = torch.empty((len(rows), *x.shape[1:]), dtype=torch.uint8 if keep else torch.float32)
    for start in range(0, len(rows), ROWS):
        out[start : start + ROWS].numpy()[:] = x[rows[start : start + ROWS]]
    labels = y[rows].astype(np.float32 if raw.classes is None else np.int64)
    return Split(out, torch.from_numpy(labels))


def hold_out(
    n: int, fraction: float, *, seed: int | tuple[int, ...], labels: np.ndarray | None = None,
    name: str = "the data set",
) -> np.ndarray:  # fmt: skip
    """A mask (n,) of about `fraction` of the examples, or of each class if labels are given."""
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"the fraction to hold out should lie strictly in (0, 1); got {fraction}")
    # numpy promises never to change the raw words of a bit generator.
    order = np.argsort(np.random.PCG64(seed).random_raw(n), kind="stable")
    groups = np.zeros(n, dtype=np.int64) if labels is None else labels
    held = np.zeros(n, dtype=bool)
    for group in np.unique(groups):
        members = order[groups[order] == group]
        held[members[: round(fraction * len(members))]] = True
    if not held.any() or held.all():
        found = f"{name} has {n} examples{' in these classes' * (labels is not None)}"
        raise ValueError(f"{found}, too few to hold out {fraction:g}: a part would be empty")
    return held


def encode_labels(labels: Sequence[np.ndarray]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Each array of labels as class numbers, and the names of the classes in sorted order.

    The first array has the training labels; a label that it lacks is an error.

    >>> import numpy as np
    >>> encode_labels([np.array(["dog", "cat"])])
    ([array([1, 0])], ('cat', 'dog'))
    """
    classes = np.unique(labels[0])
    if len(classes) < 2:
        raise ValueError(f"wanted at least two classes; the labels are {classes.tolist()}")
    for part in labels[1:]:
        if new := np.setdiff1d(part, classes).tolist():
            shown = ", ".join(map(repr, new[:5]))
            raise ValueError(f"the training part has no example of {shown}, which another part has")
    return [np.searchsorted(classes, part) for part in labels], tuple(map(str, classes))


PARTS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}
IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")  # others may start a program
DEEP = ("I", "I;16", "I;16B", "I;16L", "F")  # more than eight bits for a channel


def read_folder(path: Path, *, size: int | tuple[int, int] | None = None) -> RawDataset:
    """Images at path/class/*, or at path/train/class/*, path/test/class/*; RGB unless all are grey.

    size: (H, W), or one number for both, to crop and resize images to (None: no resizing).
    """
    shape = (size, size) if isinstance(size, int) else size and tuple(size)
    if shape is not None and (len(shape) != 2 or min(shape) < 1):
        raise ValueError(f"size should be (H, W) or one number, at least 1; got {size}")
    roots = {p: path / n for p, names in PARTS.items() for n in names if (path / n).is_dir()}
    if "train" not in roots:
        roots = {"train": path}
    files = {part: _images_by_class(root) for part, root in roots.items()}
    classes = tuple(dict.fromkeys(name for name, _ in files["train"]))
    for part, named in files.items():
        if unknown := ", ".join(sorted({name for name, _ in named}.difference(classes))):
            raise ValueError(f"{roots[part]} has classes that {roots['train']} lacks: {unknown}")
    # Check the headers first, because decoding takes long.
    grey, first = True, files["train"][0][1]
    for _, file in (pair for named in files.values() for pair in named):
        with _opened(file) as image:
            if image.mode in DEEP:
                what = f"more than eight bits a channel (mode {image.mode})"
                raise ValueError(f"{file} has {what}: convert it to eight")
            grey = grey and image.mode in ("1", "L")
            width, height = image.size
            shape = shape or (height, width)
            if size is None and shape != (height, width):
                got = f"{first} is {shape[1]}×{shape[0]}, {file} is {width}×{height}"
                raise ValueError(f"images should be of one size, or data.size be given: {got}")
    assert shape is not None  # every class has an image
    parts = {}
    for part, named in files.items():
        x = np.empty((len(named), 1 if grey else 3, *shape), dtype=np.uint8)
        for row, (_, file) in zip(x, named, strict=True):
            with _opened(file) as image:
                image = image.convert("L" if grey else "RGB")
                if image.size != shape[::-1]:
                    image = ImageOps.fit(image, shape[::-1], Image.Resampling.BICUBIC)
                row[:] = channels_first(np.asarray(image))
        parts[part] = x, np.array([classes.index(name) for name, _ in named])
    return RawDataset(parts, classes)


def _images_by_class(root: Path) -> list[tuple[str, Path]]:
    """Pairs (class, image), in the order of their names."""
    folders = sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith("."))
    if len(folders) < 2:
        wanted = f"{root} should hold one folder of images for each class, and at least two of them"
        raise ValueError(f"{wanted}; got {len(folders)}")
    files = [
        (folder.name, file) for folder in folders for file in sorted(folder.iterdir())
        if file.suffix.lower() in IMAGES and not file.name.startswith(".")
    ]  # fmt: skip
    if empty := sorted({folder.name for folder in folders} - {name for name, _ in files}):
        folder = f"class folder {', '.join(empty)} of {root}"
        raise ValueError(f"no images in the {folder}; wanted files ending in {', '.join(IMAGES)}")
    return files


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    if not file.is_file():  # a named pipe would never end
        raise ValueError(f"{file} is no regular file")
    try:
        with Image.open(file, formats=FORMATS) as image:
            yield image
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{file} is truncated or no image that can be read: {error}") from error


def read_npz(path: Path) -> RawDataset:
    """Arrays x and y; or x_train, y_train, and optionally x_test, y_test, x_validation, …

    x: images (N, C, H, W) or (N, H, W), as bytes or as floats in [0, 1], or vectors (N, d).
    y: whole numbers or strings are classes; floats are the targets of a regression.
    """
    arrays = read_arrays(path)
    suffixes = {part: [f"_{name}" for name in names] for part, names in PARTS.items()}
    if {"x", "y"} <= arrays.keys():
        suffixes = {"train": [""]}
    parts = {
        part: _examples(arrays, suffix) for part, options in suffixes.items() for suffix in options
        if {f"x{suffix}", f"y{suffix}"} <= arrays.keys()
    }  # fmt: skip
    if "train" not in parts:
        there = ", ".join(arrays) or "none"
        raise ValueError(f"{path} should hold arrays x and y, or x_train and y_train; got {there}")
    if all(y.dtype.kind == "f" for _, y in parts.values()):
        return RawDataset(parts)
    labels, classes = encode_labels([y for _, y in parts.values()])
    numbered = zip(parts.items(), labels, strict=True)
    return RawDataset({part: (x, y) for (part, (x, _)), y in numbered}, classes)


def read_extra(path: Path, dataset: Dataset) -> Split:
    """More images of the same classes from an .npz with `image` and `label`, or x and y.

    image: (N, H, W, C) bytes, the layout of published generated sets, or as for :func:`load`.
    """
    if not dataset.train.is_images or dataset.classes is None:
        raise ValueError(f"data.extra is for images with classes; {dataset.name} holds others")
    if not path.is_file():
        raise FileNotFoundError(f"data.extra should be an .npz; there is no file at {path}")
    arrays = read_arrays(path)
    x, y = arrays.get("image", arrays.get("x")), arrays.get("label", arrays.get("y"))
    if x is None or y is None or y.dtype.kind not in "iu":
        got = ", ".join(f"{name} of {array.dtype}" for name, array in arrays.items())
        raise ValueError(
            f"{path} should hold image and label (class numbers), or x and y; got {got}"
        )
    if x.shape[1:] != dataset.input_shape and x.ndim == 4:
        x = x.transpose(0, 3, 1, 2)
    x = np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32))
    try:
        split = Split(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    dataset.check(split, f"the extra images in {path}")
    return split


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays in an .npz; pickled objects are refused, because they could run code."""
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            unpacked = sum(member.file_size for member in archive.zip.infolist())
            if unpacked > LARGEST + 100 * path.stat().st_size:
                raise ValueError(f"it unpacks to {unpacked:,} bytes, 100 times its size or more")
            return {name: archive[name] for name in archive.files}
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        what = "is truncated, is no .npz file or holds pickled objects"
        raise ValueError(f"{path} {what}: {error}") from error


def _examples(arrays: dict[str, np.ndarray], suffix: str) -> Examples:
    x, y = arrays[f"x{suffix}"], arrays[f"y{suffix}"]
    channels_last = x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3)
    if x.dtype.kind not in "buif" or x.ndim not in (2, 3, 4) or channels_last:
        wanted = "numbers, images (N, C, H, W) or (N, H, W), or vectors (N, d)"
        got = f"{x.shape} of {x.dtype}" + " (save x.transpose(0, 3, 1, 2))" * channels_last
        raise ValueError(f"x{suffix} should be {wanted}; got {got}")
    y = y[:, 0] if y.shape[1:] == (1,) else y
    if y.shape != x.shape[:1] or y.dtype.kind not in "buifU":
        got = f"{y.shape} of {y.dtype}" + " (one-hot? y.argmax(1))" * (y.ndim == 2)
        raise ValueError(f"y{suffix} should be ({len(x)},), labels or targets; got {got}")
    return (x[:, None] if x.ndim == 3 else x), y


def read_table(
    path: Path, *, target: str | None, ignore: Sequence[str] = (), task: Task | None = None
) -> RawDataset:
    """The columns as features, in their order, and the column `target` as y.

    A column of text without numbers is categorical: each of its at most 100 categories becomes a
    feature "column=category" with values 1 and 0. ignore: columns to leave out. task: by default
    classification if the target is text or has at most 20 distinct values, all whole.
    """
    if task not in (None, *get_args(Task)):
        raise ValueError(f"task should be one of {', '.join(get_args(Task))}; got {task!r}")
    table, places = (_parquet if path.suffix.lower() == ".parquet" else _csv)(path)
    there = ", ".join(table)
    if target is None:
        how = "--target, data.target in a recipe or load(…, target=…)"
        raise ValueError(f"a table needs the column to predict, by {how}; {path} has {there}")
    for name in (target, *ignore):
        if name not in table:
            raise ValueError(f"{path} has no column {name!r}{hint(name, table)}; it has {there}")
    columns = tuple(name for name in table if name != target and name not in ignore)
    if not columns:
        raise ValueError(f"{path} has no column left for the features, only {target!r}")
    features: dict[str, np.ndarray] = {}
    categorical = tuple(name for name in columns if _is_categorical(table[name]))
    for name in columns:
        if name in categorical:
            groups = {f"{name}={value}": table[name] == value for value in np.unique(table[name])}
            features |= {column: ones.astype(np.float64) for column, ones in groups.items()}
        else:
            features[name] = _numbers(table[name], name, path, places)
    x, columns = np.stack([*features.values()], 1), tuple(features)
    y, values = table[target], _floats(table[target])
    if (gaps := np.flatnonzero([entry.lower() in MISSING for entry in y.tolist()])).size:
        got = f"{places[0]} {places[1][gaps[0]]} has {str(y[gaps[0]])!r}"
        many = f"{gaps.size} of {len(y)} rows have none: fill or drop them"
        raise ValueError(f"column {target!r} of {path} has no label in some rows; {got}; {many}")
    whole = values is not None and bool((values == np.round(values)).all())
    few = values is None or (whole and len(np.unique(values)) <= 20)
    if task == "regression" or (task is None and not few):
        parts = {"train": (x, _numbers(y, target, path, places, is_target=True))}
        return RawDataset(parts, None, columns, categorical)
    # As integers, so that 10 sorts after 9; above 2^53 floats are not exact.
    if values is not None and whole and bool((abs(values) < 2**53).all()):
        y = values.astype(np.int64)
    (y,), classes = encode_labels([y])
    return RawDataset({"train": (x, y)}, classes, columns, categorical)


def _is_categorical(column: np.ndarray) -> bool:
    """Whether a column is text without numbers or gaps, in 2 to 100 categories that repeat."""
    values = np.unique(column)
    return bool(
        2 <= len(values) <= min(CATEGORIES, len(column) // 2) and (values != "").all()
        and all(_floats(values[row : row + 1]) is None for row in range(len(values)))
    )  # fmt: skip


def _floats(column: np.ndarray) -> np.ndarray | None:
    """Text as numbers; None if an entry is not a number."""
    try:
        return column.astype(np.float64)
    except ValueError:
        return None


def _numbers(
    column: np.ndarray, name: str, path: Path, places: Places, is_target: bool = False
) -> np.ndarray:
    values = _floats(column)
    if values is not None and np.isfinite(values).all():
        return values
    singles = (_floats(column[row : row + 1]) for row in range(len(column)))
    row = next(r for r, value in enumerate(singles) if value is None or not np.isfinite(value))
    got = f"{places[0]} {places[1][row]} has {str(column[row])!r}"
    ways = f"Encode it, drop those rows, or leave it out with ignore={[name]!r} (data.ignore)"
    if is_target:
        ways = "Task regression predicts numbers: for classes take task classification (data.task)"
    raise ValueError(f"column {name!r} of {path} should hold finite numbers; {got}. {ways}")


def _csv(path: Path) -> tuple[dict[str, np.ndarray], Places]:
    """The columns of a CSV file as text, and the line of each row; the first row names them."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            read = [(reader.line_num, [entry.strip() for entry in row]) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV file in UTF-8: {error}") from error
    lines, rows = [line for line, _ in read[1:]], [row for _, row in read[1:]]
    names = read[0][1] if read else []
    if not rows:
        raise ValueError(f"{path} should have a row of column names and rows below; it is empty")
    if len(set(names)) != len(names):
        raise ValueError(f"{path} has two columns of one name: {', '.join(names)}")
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(names):
            raise ValueError(f"{path} has {len(names)} columns, but {len(row)} in line {line}")
    table = {name: np.array(column) for name, *column in zip(names, *rows, strict=True)}
    return table, ("line", lines)


def _parquet(path: Path) -> tuple[dict[str, np.ndarray], Places]:
    parquet = pyarrow_parquet()
    try:
        columns = parquet.read_table(path).to_pydict()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is truncated or is no Parquet file: {error}") from error
    # As text, like CSV, so that one set of rules decides what is a number and what is missing.
    table = {
        name: np.array(["" if entry is None else str(entry) for entry in column])
        for name, column in columns.items()
    }
    return table, ("row", range(1, 1 + max(map(len, columns.values()), default=0)))
