"""Files that are written whole or not at all, hashes of arrays, and progress callbacks."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

Progress = Callable[[int, int, str], None]
"""Called with what is done, of how much, and what is being done now."""


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
        digest.update(f"{array.dtype.kind}{array.dtype.itemsize}{array.shape}".encode())
        add_numbers(digest, array)
    return digest.hexdigest()


def add_numbers(digest: Any, array: np.ndarray) -> None:
    """Add the numbers, little-endian, so that the hash is the same on every processor."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    digest.update(array.reshape(-1).view(np.uint8).data)
