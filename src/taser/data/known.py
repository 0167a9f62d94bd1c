"""What it takes to be a data set with a name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from . import cache
from .parts import Examples, Parts
from .sources import Layout, Transport


class Known(Protocol):
    """A data set that can be loaded by its name."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...

    def read(self, root: Path | str | None, *, verify: bool) -> Parts:
        """The examples, from the cache at `root` if they had to be fetched."""
        ...


@dataclass(frozen=True, eq=False)
class Embedded:
    """A data set inside scikit-learn: nothing to fetch."""

    name: str
    summary: str
    parts: Callable[[], Parts] = field(repr=False)

    def read(self, root: Path | str | None, *, verify: bool) -> Parts:  # noqa: ARG002
        """The examples; there is no cache to look at and nothing to verify."""
        return self.parts()


@dataclass(frozen=True, eq=False)
class Fetchable:
    """A data set that is fetched once and kept in the cache.

    sha256: of the decoded arrays, images (N, C, H, W) and labels (N,), all bytes; whatever the
    source, these are the numbers. train, test: how many images; layouts, transports: in the order
    in which they are tried.
    """

    name: str
    summary: str
    classes: tuple[str, ...]
    image: tuple[int, int, int]
    train: int
    test: int
    sha256: str
    layouts: tuple[Layout, ...] = field(repr=False)
    transports: tuple[Transport, ...] = field(repr=False)

    @property
    def bytes(self) -> int:
        """The size of the decoded images."""
        channels, height, width = self.image
        return (self.train + self.test) * channels * height * width

    def read(self, root: Path | str | None, *, verify: bool) -> Parts:
        """The examples from the cache; `verify` hashes every byte."""
        arrays = cache.read(self.name, root, sha256=self.sha256 if verify else None)
        return Parts(
            Examples(arrays["x_train"], arrays["y_train"]),
            test=Examples(arrays["x_test"], arrays["y_test"]),
            classes=self.classes,
        )
