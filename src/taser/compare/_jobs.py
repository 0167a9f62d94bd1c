"""Worker processes of a queue: started together, watched, and stopped together."""

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

from taser._files import write_atomically
from taser._progress import Progress

Work = Callable[[Path, dict[str, Any], Progress | None], dict[str, Any]]
"""(the job's folder, what it is asked, progress) → its result, as JSON; resumable by itself."""


State = Literal["done", "over", "taken", "waiting"]
"""Of a job that a worker asked for: done just now, or earlier, in other hands, not yet possible."""

PAUSE = 2.0  # seconds before asking again for what a job waits for
NOTED = 5.0  # seconds between notes of how far a job is
STALE = 900.0  # seconds after which a note is of a worker that died


class NotYet(RuntimeError):
    """A job needs the result of another, which is not finished."""


@dataclass(frozen=True)
class Queue:
    """folder/<name>/job.json holds what is asked, result.json what came of it, error.txt a failure.

    doing.txt says how far a job in hand is. A worker that dies lets go of its job's lock, and the
    next one goes on with it. Started with the same jobs, finished ones stay as they are; a job that
    is asked differently is refused.
    """

    folder: Path

    def add(self, jobs: dict[str, dict[str, Any]]) -> None:
        """Put jobs in, by name; those that are there already have to be the same."""
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

    def job(self, name: str) -> dict[str, Any]:
        """What a job is asked."""
        return json.loads((self.folder / name / "job.json").read_text())

    def result(self, name: str) -> dict[str, Any] | None:
        """What came of a job; None if it is not finished."""
        path = self.folder / name / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    def needed(self, name: str) -> dict[str, Any]:
        """What came of a job that another needs, which has to wait for it or cannot be done."""
        result = self.result(name)
        if result is None:
            if self.failed(name):
                raise RuntimeError(f"{name}, which it needs, failed")
            raise NotYet(f"{name} has to be finished first")
        return result

    def finished(self, name: str) -> bool:
        """Whether a job is done."""
        return (self.folder / name / "result.json").exists()

    def taken(self, name: str) -> bool:
        """Whether some worker has the job in hand."""
        try:
            with FileLock(self.folder / name / ".lock", timeout=0):
                return False
        except Timeout:
            return True

    def doing(self, name: str) -> str | None:
        """How far a job is that some worker has in hand, by what that one wrote down lately."""
        note = self.folder / name / "doing.txt"
        try:  # without the lock: a worker that meets it would pass the job by
            fresh = time.time() - note.stat().st_mtime < STALE
            return note.read_text().strip() if fresh else None
        except OSError:
            return None

    def failed(self, name: str) -> bool:
        """Whether a job could not be done, when it was last tried."""
        return (self.folder / name / "error.txt").exists()

    def failures(self) -> dict[str, str]:
        """The messages of the jobs that could not be done."""
        found = {}
        for path in sorted(self.folder.glob("*/error.txt")):
            with suppress(FileNotFoundError):  # it is being tried again
                found[path.parent.name] = path.read_text()
        return found

    def work(self, do: Work, names: Iterable[str], progress: Progress | None = None) -> None:
        """Do every job of these that is neither finished nor in another worker's hands.

        The first that can be done comes next: one that had to wait is not left for the end. Jobs
        that failed before are tried again.
        """
        left = list(names)
        for name in left:
            for old in ("error.txt", "doing.txt"):  # whoever has it in hand writes another note
                (self.folder / name / old).unlink(missing_ok=True)
        while left:
            states = self._round(do, left, progress)
            left = [name for name in left if states.get(name) not in ("done", "over")]
            if "done" in states.values():
                continue
            if "waiting" not in states.values():
                return  # what is left is in other hands
            time.sleep(PAUSE)

    def _round(self, do: Work, names: list[str], progress: Progress | None) -> dict[str, State]:
        """Ask for one job after another until one is done; how those that were asked for stand."""
        states: dict[str, State] = {}
        for name in names:
            states[name] = self._attempt(do, name, progress)
            if states[name] == "done":
                break
        return states

    def _attempt(self, do: Work, name: str, progress: Progress | None) -> State:
        """Do one job, if it can be had and need not wait for another."""
        home = self.folder / name
        note = home / "doing.txt"
        try:
            with FileLock(home / ".lock", timeout=0):
                if self.result(name) is not None or (home / "error.txt").exists():
                    return "over"
                try:
                    result = do(home, self.job(name), _noted(note, progress))
                except NotYet:
                    return "waiting"
                except Exception as error:  # of any kind: the jobs behind it are to be done
                    write_atomically(home / "error.txt", f"{_told(error)}\n")
                else:
                    write_atomically(home / "result.json", json.dumps(result, indent=1))
                finally:
                    with suppress(OSError):
                        note.unlink(missing_ok=True)
                return "done"
        except Timeout:
            return "taken"


def _told(error: Exception) -> str:
    """An error in words; what nobody foresaw with its kind."""
    foreseen = isinstance(error, ValueError | RuntimeError | OSError | ImportError)
    return str(error) if foreseen else f"{type(error).__name__}: {error}"


def _noted(note: Path, progress: Progress | None) -> Progress:
    """Progress that is told on, and noted for whoever watches the queue."""
    last = -NOTED

    def tell(done: int, total: int, label: str) -> None:
        nonlocal last
        if progress:
            progress(done, total, label)
        if time.monotonic() - last > NOTED:
            last = time.monotonic()
            with suppress(OSError):  # a note is not worth a run
                write_atomically(note, f"{done / max(total, 1):.0%} {label}\n")

    return tell


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
        with _terminated_in_order():
            while any(worker.poll() is None for worker in workers):
                if progress:
                    progress(*standing(queue, names))
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
    missing = [n for n in names if not queue.finished(n) and not queue.taken(n)]
    if missing:
        raise RuntimeError(
            f"{len(missing)} of {len(names)} runs are not finished, because a worker was stopped "
            f"or ran out of memory; {missing[0]} is the first. Start again to go on."
        )


def standing(queue: Queue, names: Sequence[str]) -> tuple[int, int, str]:
    """How many jobs are done, of how many, and which are in hand; in few words, beside a bar."""
    left = [name for name in names if not queue.finished(name)]
    notes = {name: queue.doing(name) for name in left}
    failed = sum(queue.failed(name) for name in left)
    words = [f"{len(names) - len(left)} of {len(names)} runs"]
    words += [f"{failed} failed"] if failed else []
    words += [f"{name} {note.split()[0]}" for name, note in notes.items() if note]
    return len(names) - len(left), len(names), ", ".join(words)


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """SIGTERM ends this process as an exception would, so that it can stop its workers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
