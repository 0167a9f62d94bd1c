"""Data sets that are published as a Debian package."""

from dataclasses import dataclass, field
from pathlib import Path

from .client import only_file, run
from .errors import FetchError
from .transport import Progress


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
        except FetchError as first:
            if "not installed" in str(first):
                raise
            # A fresh machine has no list of packages, and an old list names files that are gone.
            progress("apt-get update", 0, None)
            try:
                run(["apt-get", "update"], work)
                run(download, work)
            except FetchError as second:
                raise FetchError(f"{first}; then {second}") from second
        files = work / "files.tar"
        run(["dpkg-deb", "--fsys-tarfile", only_file(work, "*.deb").name], work, output=files)
        return files
