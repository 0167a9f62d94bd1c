"""IDX files, in which MNIST and Fashion-MNIST are published."""

import gzip
import struct
import zlib

import numpy as np

from ..parts import Examples
from .errors import FetchError
from .layout import Layout


def decode_idx(content: bytes) -> np.ndarray:
    """An IDX file of bytes, gzipped or not, as an array."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise FetchError(f"a gzipped IDX file is truncated or damaged: {error}") from error
    # Two zero bytes, the type of the entries (8: unsigned bytes), the number of dimensions.
    if len(content) < 4 or content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise FetchError(f"wanted an IDX file of bytes; got a file that begins {content[:4]!r}")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if values.size != np.prod(shape, dtype=np.int64):
        raise FetchError(
            f"an IDX file says it has shape {shape} but holds {values.size:,} bytes: truncated?"
        )
    return values.reshape(shape)


def _decode(*groups: list[bytes]) -> tuple[Examples, Examples]:
    train_x, train_y, test_x, test_y = (decode_idx(group[0]) for group in groups)
    if train_x.ndim != 3 or test_x.ndim != 3:
        raise FetchError(f"wanted IDX images (N, H, W); got {train_x.shape} and {test_x.shape}")
    return Examples(train_x[:, None], train_y), Examples(test_x[:, None], test_y)


IDX = Layout(
    "the four IDX files, gzipped or not",
    (
        "train-images?idx3-ubyte*",
        "train-labels?idx1-ubyte*",
        "t10k-images?idx3-ubyte*",
        "t10k-labels?idx1-ubyte*",
    ),
    _decode,
)
