"""Arrays in an .npz file."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from .labels import numbered
from .parts import Examples, Parts

SUFFIXES = {"train": ("_train",), "validation": ("_validation", "_val"), "test": ("_test",)}


def read_npz(path: Path) -> Parts:
    """x and y; or x_train and y_train, with x_test, y_test, x_validation, y_validation if there.

    x: images (N, C, H, W) or (N, H, W), as bytes or as floats in [0, 1], or vectors (N, d).
    y: whole numbers or strings are classes; floats are the targets of a regression.
    """
    arrays = _arrays(path)
    if "x" in arrays and "y" in arrays:
        found = {"train": ("x", "y")}
    else:
        found = {
            part: (f"x{suffix}", f"y{suffix}")
            for part, suffixes in SUFFIXES.items()
            for suffix in suffixes
            if f"x{suffix}" in arrays and f"y{suffix}" in arrays
        }
    if "train" not in found:
        raise ValueError(
            f"{path} should hold arrays x and y, or x_train and y_train; "
            f"got {', '.join(arrays) or 'none'}"
        )
    y = {part: _targets(arrays[name], name) for part, (_, name) in found.items()}
    classes = None
    if any(array.dtype.kind != "f" for array in y.values()):
        numbers, classes = numbered(list(y.values()))
        y = dict(zip(y, numbers, strict=True))
    parts = {}
    for part, (name, target) in found.items():
        x = _inputs(arrays[name], name)
        if len(x) != len(y[part]):
            raise ValueError(f"{name} has {len(x)} rows, but {target} has {len(y[part])}")
        parts[part] = Examples(x, y[part])
    return Parts(parts["train"], parts.get("validation"), parts.get("test"), classes)


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
