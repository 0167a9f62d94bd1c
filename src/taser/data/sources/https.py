"""Files from the web server of a data set's authors."""

import errno
import http.client
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .errors import FetchError
from .transport import Progress, check_sha256

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
