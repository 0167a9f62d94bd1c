"""A queue of runs in a folder, which worker processes share by file locks."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from taser._files import Progress, write_atomically

from ._comparison_config import Job

RunJob = Callable[[Path, Job, Progress | None], dict[str, Any]]
"""(the job's folder, its settings, progress) → its result, as JSON; resumable by itself."""

Outcome = Literal["done", "finished", "locked", "waiting"]
"""Of one attempt: done now; finished or failed before; another worker has it; a run is missing."""

POLL = 2.0  # seconds before a waiting job is tried again
NOTE_EVERY = 5.0  # seconds between notes of a job's progress
NOTE_EXPIRES = 900.0  # seconds after which a note is taken for that of a dead worker


class NotReady(RuntimeError):
    """A job needs the result of another, which is not finished."""


@dataclass(frozen=True)
class Queue:
    """folder/<name>/ of each job holds job.json, its settings, and result.json or error.txt.

    A worker holds the lock of the job that it runs, and writes its progress to doing.txt. If the
    worker dies, the lock is free and another worker resumes the job. Finished jobs are not run
    again; a job whose settings differ from those in the folder is refused.
    """

    folder: Path

    def add(self, jobs: dict[str, Job]) -> None:
        """Add jobs by name; those that exist must have the same settings."""
        for name, job in jobs.items():
            path = self.folder / name / "job.json"
            text = json.dumps(job, indent=1, sort_keys=True)
            if path.exists() and path.read_text() != text:
                raise ValueError(
                    f"{path.parent} holds a job with other settings: choose another folder"
                )
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
        """The result of a job that another needs; NotReady, or RuntimeError if it failed."""
        result = self.result(name)
        if result is None:
            if self.failed(name):
                raise RuntimeError(f"{name}, which it needs, failed")
            raise NotReady(f"{name} has to be finished first")
        return result

    def finished(self, name: str) -> bool:
        """Whether a job has a result."""
        return (self.folder / name / "result.json").exists()

    def failed(self, name: str) -> bool:
        """Whether the last attempt at a job failed."""
        return (self.folder / name / "error.txt").exists()

    def failures(self) -> dict[str, str]:
        """The error messages of the jobs that failed."""
        found = {}
        for path in sorted(self.folder.glob("*/error.txt")):
            with suppress(FileNotFoundError):  # it is being tried again
                found[path.parent.name] = path.read_text()
        return found

    def is_locked(self, name: str) -> bool:
        """Whether a worker runs the job."""
        try:
            with FileLock(self.folder / name / ".lock", timeout=0):
                return False
        except Timeout:
            return True

    def note(self, name: str) -> str | None:
        """The progress of a running job, by its worker's last note; None without a recent one."""
        note = self.folder / name / "doing.txt"
        try:  # without the lock: a worker that meets it would pass the job by
            fresh = time.time() - note.stat().st_mtime < NOTE_EXPIRES
            return note.read_text().strip() if fresh else None
        except OSError:
            return None

    def status(self, names: Sequence[str]) -> tuple[int, int, str]:
        """Jobs finished, jobs in all, and a line with both, failures and running jobs."""
        left = [name for name in names if not self.finished(name)]
        notes = {name: self.note(name) for name in left}
        failed = sum(self.failed(name) for name in left)
        words = [f"{len(names) - len(left)} of {len(names)} runs"]
        words += [f"{failed} failed"] if failed else []
        words += [f"{name} {note.split()[0]}" for name, note in notes.items() if note]
        return len(names) - len(left), len(names), ", ".join(words)

    def work(self, run: RunJob, names: Iterable[str], progress: Progress | None = None) -> None:
        """Run every one of these jobs that is neither finished nor locked by another worker.

        The first that is ready comes next, so that a job that had to wait is not left for the end.
        Jobs that failed before are tried again.
        """
        left = list(names)
        for name in left:
            for old in ("error.txt", "doing.txt"):  # the worker that has a job writes a new note
                (self.folder / name / old).unlink(missing_ok=True)
        while left:
            outcomes: dict[str, Outcome] = {}
            for name in left:
                outcomes[name] = self._attempt(run, name, progress)
                if outcomes[name] == "done":
                    break
            left = [name for name in left if outcomes.get(name) not in ("done", "finished")]
            if "done" in outcomes.values():
                continue
            if "waiting" not in outcomes.values():
                return  # other workers have the rest
            time.sleep(POLL)

    def _attempt(self, run: RunJob, name: str, progress: Progress | None) -> Outcome:
        home = self.folder / name
        note = home / "doing.txt"
        try:
            with FileLock(home / ".lock", timeout=0):
                if self.finished(name) or self.failed(name):
                    return "finished"
                try:
                    result = run(home, self.job(name), _with_notes(note, progress))
                except NotReady:
                    return "waiting"
                except Exception as error:  # of any kind: the jobs behind it still have to run
                    write_atomically(home / "error.txt", f"{_message(error)}\n")
                else:
                    write_atomically(home / "result.json", json.dumps(result, indent=1))
                finally:
                    with suppress(OSError):
                        note.unlink(missing_ok=True)
                return "done"
        except Timeout:
            return "locked"


def _message(error: Exception) -> str:
    """An error's message; with its type if it is not one that the package raises itself."""
    expected = isinstance(error, ValueError | RuntimeError | OSError | ImportError)
    return str(error) if expected else f"{type(error).__name__}: {error}"


def _with_notes(note: Path, progress: Progress | None) -> Progress:
    """A progress callback that also writes the progress to a file now and then."""
    last = -NOTE_EVERY

    def callback(done: int, total: int, label: str) -> None:
        nonlocal last
        if progress:
            progress(done, total, label)
        if time.monotonic() - last > NOTE_EVERY:
            last = time.monotonic()
            with suppress(OSError):  # a note is not worth a run
                write_atomically(note, f"{done / max(total, 1):.0%} {label}\n")

    return callback


def run_workers(
    command: Sequence[str],
    queue: Queue,
    jobs: int,
    threads: int,
    names: Sequence[str],
    progress: Progress | None = None,
) -> None:
    """Run `python -m taser <command>` in `jobs` processes until the queue is done."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    workers = [
        subprocess.Popen([sys.executable, "-m", "taser", *command], env=environment)
        for _ in range(jobs)
    ]
    try:
        with _sigterm_exits():
            while any(worker.poll() is None for worker in workers):
                if progress:
                    progress(*queue.status(names))
                time.sleep(0.5)
    finally:
        for worker in workers:
            worker.terminate()
    failed = {name: text for name, text in queue.failures().items() if name in names}
    if failed:
        first = next(iter(failed))
        raise RuntimeError(
            f"{len(failed)} of {len(names)} runs failed; {first}: {failed[first].strip()}"
        )
    missing = [n for n in names if not queue.finished(n) and not queue.is_locked(n)]
    if missing:
        raise RuntimeError(
            f"{len(missing)} of {len(names)} runs are not finished, because a worker was stopped "
            f"or ran out of memory; {missing[0]} is the first. Start again to go on."
        )


@contextmanager
def _sigterm_exits() -> Iterator[None]:
    """SIGTERM ends this process by an exception, so that it stops its workers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
