"""Files written whole and read with checks, hashes of arrays, and progress callbacks."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

LARGEST = 512 * 2**20
"""Bytes that one compressed file of data or records may hold; none of ours comes near it."""

Progress = Callable[[int, int, str], None]
"""Called with what is done, of how much, and what is being done now."""


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them.

    >>> duration(40), duration(400), duration(40_000)
    ('40 s', '7 min', '11.1 h')
    """
    limits = ((90, 1, ".0f", "s"), (5400, 60, ".0f", "min"), (float("inf"), 3600, ".1f", "h"))
    _, unit, form, name = next(row for row in limits if seconds < row[0])
    return f"{seconds / unit:{form}} {name}"


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """The JSON object in a file, which must have these keys; the error names the file."""
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} should hold a JSON object; got {content!r:.60}")
    if missing := [key for key in keys if key not in content]:
        raise ValueError(f"{path} should have the keys {', '.join(keys)}; {missing[0]} is missing")
    return content


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


def read_bounded(stream: Any, name: Path | str) -> bytes:
    """All bytes of a decompressed stream, at most LARGEST."""
    content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"{name} unpacks to more than {LARGEST:,} bytes, which no file here has")
    return content


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
