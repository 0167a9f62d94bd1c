"""The cache of fetched data sets: one folder each, whole or not there."""

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from taser._files import sha256_of_arrays, write_atomically

FORMAT = 1
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def cache_root(root: Path | str | None = None) -> Path:
    """The folder of everything cached: `root`, else $TASER_CACHE, else ~/.cache/taser."""
    if root is not None:
        return Path(root).expanduser()
    if setting := os.environ.get("TASER_CACHE"):
        return Path(setting).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taser"


@dataclass(frozen=True)
class Manifest:
    """What lies in one folder of the cache, and how it was come by.

    sha256: of the decoded arrays; sizes, checksums: bytes of each file and crc32 of its array.
    """

    name: str
    source: str
    sha256: str
    train: int
    test: int
    sizes: dict[str, int]
    checksums: dict[str, int]
    format: int = FORMAT


class DamagedCache(RuntimeError):
    """A cached data set whose bytes are not those that were written."""


def store(
    folder: Path, name: str, source: str, sha256: str, arrays: Mapping[str, np.ndarray]
) -> Manifest:
    """Write the four arrays of bytes and their manifest into the new folder `folder`."""
    folder.mkdir()
    for part in ARRAYS:
        _write_npy(folder / f"{part}.npy", arrays[part])
    manifest = Manifest(
        name, source, sha256, len(arrays["x_train"]), len(arrays["x_test"]),
        {part: (folder / f"{part}.npy").stat().st_size for part in ARRAYS},
        {part: zlib.crc32(arrays[part].data) for part in ARRAYS},
    )  # fmt: skip
    write_atomically(folder / "manifest.json", json.dumps(asdict(manifest), indent=2))
    return manifest


def _write_npy(path: Path, array: np.ndarray) -> None:
    # Not by np.save, whose error on a full disk does not say that it is one.
    header = np.lib.format.header_data_from_array_1_0(array)
    with open(path, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(array.data)
        stream.flush()
        os.fsync(stream.fileno())


def publish(folder: Path, destination: Path) -> None:
    """Move a finished folder to its place, over anything broken that is there."""
    shutil.rmtree(destination, ignore_errors=True)
    os.replace(folder, destination)


def cached(name: str, *, root: Path | str | None = None) -> Manifest | None:
    """The manifest of a data set in the cache, or None if it is absent or not whole.

    Looks at sizes only, so that it is instant.
    """
    folder = cache_root(root) / name
    try:
        manifest = Manifest(**json.loads((folder / "manifest.json").read_text()))
        sizes = {part: (folder / f"{part}.npy").stat().st_size for part in ARRAYS}
    except (OSError, ValueError, TypeError):
        return None
    return manifest if manifest.format == FORMAT and manifest.sizes == sizes else None


def read(name: str, root: Path | str | None, *, sha256: str | None) -> dict[str, np.ndarray]:
    """The arrays of a cached data set, mapped into memory and checked by crc32.

    sha256: if given, the arrays are checked against it as well, which takes a little longer.
    """
    folder = cache_root(root) / name
    manifest = cached(name, root=root)
    if manifest is None:
        raise FileNotFoundError(
            f"{name} is not in the cache at {cache_root(root)}: fetch it once with "
            f"`taser data fetch {name}`, or taser.data.fetch({name!r})"
        )
    try:
        arrays = {part: np.load(folder / f"{part}.npy", mmap_mode="r") for part in ARRAYS}
    except ValueError:  # the few bytes before the numbers
        arrays = {}
    whole = arrays and all(
        zlib.crc32(array.data) == manifest.checksums.get(part) for part, array in arrays.items()
    )
    if whole and sha256 is not None:
        whole = sha256_of_arrays(arrays[part] for part in ARRAYS) == sha256
    if not whole:
        raise DamagedCache(
            f"the bytes of {name} in {folder} are not those that were fetched: remove that folder "
            f"and run `taser data fetch {name}` again"
        )
    return arrays
