"""Runs in folders: each in a process of its own, resumable, shared with others by file locks."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from taser._files import Progress, write_atomically

from ._comparison_config import Job

RunJob = Callable[[Path, Job, Progress], dict[str, Any]]
"""(the job's folder, its settings, progress) → its result, as JSON; resumable by itself."""

POLL = 0.5  # seconds between two looks at the processes
NOTE_EVERY = 5.0  # seconds between notes of a job's progress
NOTE_EXPIRES = 900.0  # seconds after which a note is taken for that of a dead process


@dataclass(frozen=True)
class Runs:
    """folder/<name>/ of each job holds job.json, its settings, and result.json or error.txt.

    The process that runs a job holds its lock, and writes its progress to doing.txt.
    """

    folder: Path

    def add(self, jobs: dict[str, Job]) -> None:
        """Add jobs by name; those that exist must have the same settings."""
        for name, job in jobs.items():
            path = self.folder / name / "job.json"
            text = json.dumps(job, indent=1, sort_keys=True)
            if path.exists() and path.read_text() != text:
                raise ValueError(f"{path.parent} has other settings: choose another folder")
            write_atomically(path, text)

    def names(self) -> list[str]:
        """All jobs, in order."""
        return sorted(path.parent.name for path in self.folder.glob("*/job.json"))

    def job(self, name: str) -> Job:
        """The settings of a job."""
        return json.loads((self.folder / name / "job.json").read_text())

    def result(self, name: str) -> dict[str, Any] | None:
        """The result of a job; None if it is not finished."""
        path = self.folder / name / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    def required_result(self, name: str) -> dict[str, Any]:
        """The result of a job that another needs."""
        if (result := self.result(name)) is None:
            failed = (self.folder / name / "error.txt").exists()
            why = "which it needs, failed" if failed else "which it needs, is not finished"
            raise RuntimeError(f"{name}, {why}")
        return result

    def finished(self, name: str) -> bool:
        """Whether a job has a result."""
        return (self.folder / name / "result.json").exists()

    def failures(self) -> dict[str, str]:
        """The error messages of the jobs that failed."""
        found = {}
        for path in sorted(self.folder.glob("*/error.txt")):
            with suppress(FileNotFoundError):  # it is being tried again
                found[path.parent.name] = path.read_text()
        return found

    def status(self, names: Sequence[str]) -> tuple[int, int, str]:
        """Jobs finished, jobs in all, and a line with both, failures and running jobs."""
        left = [name for name in names if not self.finished(name)]
        words = [f"{len(names) - len(left)} of {len(names)} runs"]
        if failed := len(self.failures().keys() & set(left)):
            words.append(f"{failed} failed")
        for name in left:
            note = self.folder / name / "doing.txt"
            with suppress(OSError, IndexError):
                if time.time() - note.stat().st_mtime < NOTE_EXPIRES:
                    words.append(f"{name} {note.read_text().split()[0]}")
        return len(names) - len(left), len(names), ", ".join(words)


def run_here(home: Path, run: RunJob) -> None:
    """Run the job in `home`, unless it is finished or another process has it; keep its error."""
    note, last = home / "doing.txt", -NOTE_EVERY

    def progress(done: int, total: int, label: str) -> None:
        nonlocal last
        if time.monotonic() - last > NOTE_EVERY:
            last = time.monotonic()
            with suppress(OSError):  # a note is not worth a run
                write_atomically(note, f"{done / max(total, 1):.0%} {label}\n")

    with suppress(Timeout), FileLock(home / ".lock", timeout=0):
        if (home / "result.json").exists():
            return
        try:
            result = run(home, json.loads((home / "job.json").read_text()), progress)
        except Exception as error:  # of any kind: the jobs behind it still have to run
            expected = isinstance(error, ValueError | RuntimeError | OSError | ImportError)
            message = str(error) if expected else f"{type(error).__name__}: {error}"
            write_atomically(home / "error.txt", f"{message}\n")
        else:
            write_atomically(home / "result.json", json.dumps(result, indent=1))
        finally:
            note.unlink(missing_ok=True)


def run_all(
    runs: Runs, names: Sequence[str], command: Sequence[str], *, jobs: int = 1, threads: int = 1,
    progress: Progress | None = None,
) -> None:  # fmt: skip
    """Run every one of these that is not finished, `jobs` at a time, each by `command` FOLDER.

    A job waits for those whose results it needs, and is left to another `run_all` that has it, here
    or on another machine, unless that one dies. Jobs that failed before are tried again.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    left = [name for name in names if not runs.finished(name)]
    needed: dict[str, set[str]] = {}
    for name in left:
        job = runs.job(name)
        searched = (other for choice in job.get("choices", []) for other in choice["among"])
        needed[name] = {*searched, *(job[key] for key in ("start", "judged") if key in job)}
        (runs.folder / name / "error.txt").unlink(missing_ok=True)
    working: dict[str, subprocess.Popen] = {}
    main = threading.current_thread() is threading.main_thread()  # no other may handle signals
    if main:  # SIGTERM ends this process by an exception, so that it stops its workers
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        while left:
            for name in left:
                if len(working) == jobs:
                    break
                home = runs.folder / name
                if name not in working and not needed[name] & set(left) and not _locked(home):
                    working[name] = subprocess.Popen([*command, str(home)], env=environment)
            if progress:
                progress(*runs.status(names))
            time.sleep(POLL)
            for name, code in [(name, worker.poll()) for name, worker in working.items()]:
                if code is not None:
                    del working[name]
                if code and not runs.finished(name):
                    text = f"its process ended with exit code {code}, stopped or out of memory"
                    write_atomically(runs.folder / name / "error.txt", f"{text}\n")
            failed = runs.failures()
            left = [name for name in left if name not in failed and not runs.finished(name)]
    finally:
        for worker in working.values():
            worker.terminate()
            worker.wait()
        if main:
            signal.signal(signal.SIGTERM, before)
    failed = {name: text for name, text in runs.failures().items() if name in names}
    if failed:
        first = next(iter(failed))
        message = f"{first}: {failed[first].strip()}. Start again to go on."
        raise RuntimeError(f"{len(failed)} of {len(names)} runs failed; {message}")


def _locked(home: Path) -> bool:
    """Whether a process runs the job."""
    try:
        with FileLock(home / ".lock", timeout=0):
            return False
    except Timeout:
        return True
