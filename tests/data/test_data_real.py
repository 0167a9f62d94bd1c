"""The real data sets, where they have been fetched."""

import time

import pytest
import torch

from taser.data import Dataset, load
from taser.data._cache import cache_root, cached
from taser.data._published import Downloadable, find


def real(name: str, **options: object) -> Dataset:
    spec = find(name)
    assert isinstance(spec, Downloadable)
    if not cached(spec):
        pytest.skip(f"{name} is not in {cache_root()}: `taser data fetch {name}` gets it")
    return load(name, **options)  # type: ignore[arg-type]


def mean(data: Dataset) -> torch.Tensor:
    """Of each channel, over the published training part."""
    images = [
        split.rows(slice(start, start + 1000)).mean((2, 3)).double()
        for split in (data.train, data.validation)
        for start in range(0, len(split), 1000)
    ]
    return torch.cat(images).mean(0)


@pytest.fixture(scope="module")
def cifar10() -> Dataset:
    return real("cifar10")


def test_cifar10_is_the_published_one(cifar10: Dataset) -> None:
    assert cifar10.input_shape == (3, 32, 32)
    assert [len(split) for split in cifar10.splits.values()] == [45_000, 5_000, 10_000]
    labels = [torch.bincount(split.y).tolist() for split in cifar10.splits.values()]
    assert labels == [[4500] * 10, [500] * 10, [1000] * 10]
    published = torch.tensor([0.49139968, 0.48215841, 0.44653091], dtype=torch.float64)
    torch.testing.assert_close(mean(cifar10), published, atol=1e-6, rtol=0)


def test_cifar10_splits_are_the_same_on_every_machine(cifar10: Dataset) -> None:
    assert cifar10.validation.hash == (
        "834dd87f4dda39d4b87300ac4136e4f86842af8d3546c56c731fb685bc6d0b3f"
    )
    assert cifar10.test.hash == "89376b9f6a8072694eb56ee656332eb6b0c4101789750370f4fbd5ef3a55d225"


@pytest.mark.parametrize(
    ("name", "published"), [("mnist", 0.13066048), ("fashion-mnist", 0.28604060)]
)
def test_grey_sets_are_the_published_ones(name: str, published: float) -> None:
    data = real(name)
    assert data.input_shape == (1, 28, 28)
    assert len(data.train) + len(data.validation) == 60_000
    assert len(data.test) == 10_000
    assert abs(float(mean(data)) - published) < 1e-6


def test_loading_fifty_thousand_images_takes_under_three_seconds(cifar10: Dataset) -> None:
    """Processor time, the smallest of three, since other work may share the machine."""
    del cifar10  # only to have it fetched, and its files in the memory of the system
    seconds = []
    for _ in range(3):
        before = time.process_time()
        data = load("cifar10")
        seconds.append(time.process_time() - before)
        assert len(data.train.x) + len(data.validation.x) == 50_000
    assert min(seconds) < 3.0
