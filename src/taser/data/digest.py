"""Content hashes: the same numbers give the same hash on every machine."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


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
