"""Runs in folders: each in a process of its own, and resumable."""

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

from taser._files import Progress, read_json, write_atomically

from ._comparison_config import Job, run_title

RunJob = Callable[[Path, Job, Progress], dict[str, Any]]
"""(the job's folder, its settings, progress) → its result, as JSON; resumable by itself."""

POLL = 0.5  # seconds between two looks at the processes
NOTE_EVERY = 2.0  # seconds between notes of a job's progress
NOTE_EXPIRES = 900.0  # seconds after which a note is taken for that of a dead process


@dataclass(frozen=True)
class Runs:
    """folder/<name>/ of each job holds job.json, its settings, and result.json or error.txt.

    The process that runs a job holds its lock, and writes the per cent done to doing.txt.
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
        return read_json(self.folder / name / "job.json")

    def result(self, name: str) -> dict[str, Any] | None:
        """The result of a job; None if it is not finished."""
        return read_json(self.folder / name / "result.json") if self.finished(name) else None

    def required_result(self, name: str) -> dict[str, Any]:
        """The result of a job that another needs."""
        if (result := self.result(name)) is None:
            why = "failed" if name in self.failures() else "is not finished"
            raise RuntimeError(f"{name}, which it needs, {why}")
        return result

    def finished(self, name: str) -> bool:
        """Whether a job has a result."""
        return (self.folder / name / "result.json").exists()

    def failures(self) -> dict[str, str]:
        """The error messages of the jobs that failed."""
        found = {path.parent.name: path for path in sorted(self.folder.glob("*/error.txt"))}
        return {name: found[name].read_text().strip() for name in found if not self.finished(name)}

    def status(self, names: Sequence[str]) -> tuple[int, int, str]:
        """Per cent done, summed over these jobs; 100 for each; and a line about them all."""
        left, failed = [name for name in names if not self.finished(name)], self.failures()
        words, share = [f"{len(names) - len(left)} of {len(names)} runs"], 0
        if failures := sum(name in failed for name in left):
            words.append(f"{failures} failed")
        for name in left:
            note = self.folder / name / "doing.txt"
            with suppress(OSError):
                if time.time() - note.stat().st_mtime < NOTE_EXPIRES:
                    words.append(f"{run_title(name, self.job(name))}: {note.read_text()} %")
                    share += int(note.read_text())
        done = len(names) - len(left) + failures
        return 100 * done + share, 100 * len(names), "; ".join(words)


def run_here(home: Path, run: RunJob) -> None:
    """Run the job in `home`, unless it is finished or another process has it; keep its error."""
    note, last, highest = home / "doing.txt", -NOTE_EVERY, 0

    def progress(done: int, total: int, _: str) -> None:
        nonlocal last, highest
        if time.monotonic() - last > NOTE_EVERY:
            last, highest = time.monotonic(), max(highest, 100 * done // max(total, 1))
            with suppress(OSError):  # a note is not worth a run
                write_atomically(note, str(highest))

    with suppress(Timeout), FileLock(home / ".lock", timeout=0):
        if (home / "result.json").exists():
            return
        try:
            result = run(home, read_json(home / "job.json"), progress)
            write_atomically(home / "result.json", json.dumps(result, indent=1))
        except Exception as error:  # of any kind: the jobs behind it still have to run
            expected = isinstance(error, ValueError | RuntimeError | OSError | ImportError)
            message = str(error) if expected else f"{type(error).__name__}: {error}"
            write_atomically(home / "error.txt", f"{message}\n")
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
    left: dict[str, set[str]] = {}  # by name, the jobs that it needs
    for name in (name for name in names if not runs.finished(name)):
        job = runs.job(name)
        searched = (other for choice in job.get("choices", []) for other in choice["among"])
        left[name] = {*searched, *(job[key] for key in ("start", "judged") if key in job)}
        (runs.folder / name / "error.txt").unlink(missing_ok=True)
    working: dict[str, subprocess.Popen] = {}
    main = threading.current_thread() is threading.main_thread()  # no other may handle signals
    if main:  # SIGTERM ends this process by an exception, so that it stops its workers
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        while left:
            for name, needed in left.items():
                if len(working) == jobs:
                    break
                home = runs.folder / name
                if name not in working and not needed & left.keys() and not _locked(home):
                    working[name] = subprocess.Popen([*command, str(home)], env=environment)
            if progress:
                done, total, words = runs.status(names)
                progress(done, total, words if working else f"{words}; waits for other processes")
            time.sleep(POLL)
            for name, code in [(name, worker.poll()) for name, worker in working.items()]:
                if code is not None:
                    del working[name]
                if code and not runs.finished(name):
                    text = f"its process ended with exit code {code}, stopped or out of memory"
                    write_atomically(runs.folder / name / "error.txt", f"{text}\n")
            over = runs.failures().keys()
            left = {n: left[n] for n in left if n not in over and not runs.finished(n)}
    finally:
        for worker in working.values():
            worker.terminate()
            worker.wait()
        if main:
            signal.signal(signal.SIGTERM, before)
    if failed := {name: text for name, text in runs.failures().items() if name in names}:
        first = next(iter(failed))
        message = f"{first}: {failed[first]}. Start again to go on."
        raise RunsFailed(f"{len(failed)} of {len(names)} runs failed; {message}")


class RunsFailed(RuntimeError):
    """Some runs of a comparison failed; the others are finished."""


def _locked(home: Path) -> bool:
    """Whether a process runs the job."""
    try:
        with FileLock(home / ".lock", timeout=0):
            return False
    except Timeout:
        return True
