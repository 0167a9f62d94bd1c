"""Content hashes: the same numbers give the same hash on every machine."""

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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


class Taken(RuntimeError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock file at `path`; if another does, wait for it or raise :class:`Taken`.

    The operating system lets go of the lock when its holder dies, so a crash blocks nobody; the
    empty file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if wait:
            _acquire(descriptor)
        elif not _try(descriptor):
            raise Taken(f"another process holds {path}")
        yield
    finally:
        os.close(descriptor)


if sys.platform == "win32":
    import msvcrt

    def _acquire(descriptor: int) -> None:
        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
            except OSError:  # it gives up after ten seconds; the other may take longer
                continue
            return

    def _try(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _acquire(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def _try(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


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
    """Add the numbers, little-endian, so that the hash says nothing of the processor."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    digest.update(array.reshape(-1).view(np.uint8).data)
