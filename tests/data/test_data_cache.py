from collections.abc import Callable
from pathlib import Path

import pytest

from taser.data import DamagedCache, fetch, load
from taser.data._cache import cache_root, cached
from taser.data._published import Downloadable


@pytest.fixture
def root(
    small_cifar: Downloadable, row_files: dict, as_tar: Callable[[dict], Path], tmp_path: Path
) -> Path:
    """A cache with the small CIFAR-10 in it."""
    fetch(small_cifar.name, root=tmp_path / "cache", source=as_tar(row_files))
    return tmp_path / "cache"


def test_root_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TASER_CACHE", raising=False)
    assert cache_root() == tmp_path / ".cache" / "taser"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "taser"
    monkeypatch.setenv("TASER_CACHE", "~/data")
    assert cache_root() == tmp_path / "data"
    assert cache_root("/elsewhere") == Path("/elsewhere")


def test_environment_is_heeded_by_load(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASER_CACHE", str(root))
    assert len(load("cifar10", validation=0.2).train) == 40


def test_absent_data_says_how_to_fetch_it(small_cifar: Downloadable, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="`taser data fetch cifar10`"):
        load(small_cifar.name, root=tmp_path)


def test_truncated_file_counts_as_absent(small_cifar: Downloadable, root: Path) -> None:
    assert cached(small_cifar, root)
    file = root / "cifar10" / "x_train.npy"
    file.write_bytes(file.read_bytes()[:-1])
    assert not cached(small_cifar, root)
    with pytest.raises(FileNotFoundError, match="not in the cache"):
        load("cifar10", root=root)


@pytest.mark.parametrize("place", [0, 5000])
def test_one_changed_byte_is_noticed(root: Path, place: int) -> None:
    file = root / "cifar10" / "x_train.npy"
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedCache, match="remove that folder and run"):
        load("cifar10", root=root)


def test_data_that_were_replaced_are_noticed(root: Path) -> None:
    """A file of the same size, with other numbers than CIFAR-10."""
    file = root / "cifar10" / "y_train.npy"
    file.write_bytes(file.read_bytes()[:-50] + bytes([1, 0] * 25))
    with pytest.raises(DamagedCache, match="have changed since they were fetched"):
        load("cifar10", root=root, validation=0.2)
