"""Files that are written whole or not at all, and hashes of arrays."""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def write_atomically(path: Path, content: str | bytes) -> Path:
    """Write `content` to `path` so that no reader, and no crash, ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def sha256_of_arrays(arrays: Iterable[np.ndarray]) -> str:
    """The sha256 of the arrays' types, shapes and numbers, in the order given."""
    digest = hashlib.sha256()
    for array in arrays:
        add_shape(digest, f"{array.dtype.kind}{array.dtype.itemsize}", array.shape)
        add_array(digest, array)
    return digest.hexdigest()


def add_shape(digest: Any, kind: str, shape: Sequence[int]) -> None:
    """Add what comes before the numbers of an array: its type, such as "f4", and its shape."""
    digest.update(f"{kind}{tuple(shape)}".encode())


def add_array(digest: Any, array: np.ndarray) -> None:
    """Add the numbers, little-endian, so that the hash is the same on every processor."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    digest.update(array.reshape(-1).view(np.uint8).data)
