"""Package clients, run as a user would run them."""

import errno
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import FetchError

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
