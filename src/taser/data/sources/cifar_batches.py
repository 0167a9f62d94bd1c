"""The official python batches of CIFAR-10: pickles, read as data and never as code."""

import io
import pickle
from typing import Any

import numpy as np

from ..parts import Examples, joined
from .errors import FetchError
from .layout import Layout


class ArrayUnpickler(pickle.Unpickler):
    """Builds containers, numbers, strings and arrays of bytes; refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): _bytes_dtype,
            ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes in old protocols
        }
        if (module, name) not in allowed:
            raise FetchError(
                f"a batch file asks for {module}.{name}, which no batch of CIFAR-10 needs: it may "
                "be an attempt to run code, and was not read"
            )
        return allowed[module, name]


# Where this function lives differs between versions of numpy, so an array is asked.
_reconstruct: Any = np.empty(0).__reduce__()[0]


def _bytes_dtype(kind: Any, *options: Any) -> np.dtype:
    if kind not in ("u1", b"u1"):
        raise FetchError(f"a batch file holds an array of {kind!r}; wanted bytes")
    return np.dtype("u1", *options)


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":  # other codecs do more than encode
        raise FetchError(f"a batch file asks for the codec {encoding!r}; wanted latin1")
    return text.encode("latin1")


def unpickle_batch(content: bytes) -> Examples:
    """One batch: images (N, 3, 32, 32) and labels (N,)."""
    try:
        batch = ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        entries = {key.decode() if isinstance(key, bytes) else key: batch[key] for key in batch}
        rows = np.asarray(entries["data"])
        labels = np.asarray(entries["labels"], dtype=np.uint8)
        return Examples(rows.reshape(len(rows), 3, 32, 32), labels)
    except FetchError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise FetchError(
            f"a batch file is truncated or is no batch of CIFAR-10: {error!r}"
        ) from error


def _decode(train: list[bytes], test: list[bytes]) -> tuple[Examples, Examples]:
    return joined([unpickle_batch(batch) for batch in train]), unpickle_batch(test[0])


CIFAR_BATCHES = Layout(
    "cifar-10-batches-py, or cifar-10-python.tar.gz with it",
    ("data_batch_?", "test_batch"),
    _decode,
)
