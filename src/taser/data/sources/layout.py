"""The ways in which one data set is stored in files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ..parts import Examples
from .errors import FetchError
from .members import read_members

Decode = Callable[..., tuple[Examples, Examples]]


@dataclass(frozen=True)
class Layout:
    """Files that together hold a data set, and how to decode them.

    files: patterns of file names, each of which has to be met.
    decode: takes, for each pattern, the list of the contents that met it, in the order of their
    names; returns the training and the test examples as bytes.
    """

    what: str
    files: tuple[str, ...]
    decode: Decode


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
