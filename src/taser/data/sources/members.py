"""Reads files by name out of a folder or a tar archive, and writes nothing."""

import lzma
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from .errors import FetchError

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
    for name, content in _folder(path, patterns) if path.is_dir() else _archive(path, patterns):
        found.setdefault(name, content)
    return found


def _folder(path: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for file in (*sorted(path.glob("*")), *sorted(path.glob("*/*"))):
        if _wanted(file.name, patterns) and file.is_file():
            yield file.name, file.read_bytes()


def _archive(path: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if not member.isreg() or not _wanted(name, patterns):
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


def _wanted(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
