"""Runs in folders, and the loop that submits them to an executor."""

import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from taser._files import Progress, read_json, write_atomically

from ._comparison_config import Job, run_title

RunJob = Callable[[Path, Job, Progress], dict[str, Any]]
"""(the run's folder, its settings, progress) → its result, as JSON; it resumes a killed run."""

POLL = 0.5  # seconds between checks of the running runs
NOTE_EVERY = 2.0  # seconds between notes of a run's progress


@dataclass(frozen=True)
class Runs:
    """folder/<name>/ holds a run's settings, job.json, and then result.json or error.txt.

    While it runs, progress.txt holds the percent done and the stage.
    """

    folder: Path

    def add(self, jobs: dict[str, Job]) -> None:
        """Add runs by name; an existing run must have the same settings."""
        for name, job in jobs.items():
            path = self.folder / name / "job.json"
            text = json.dumps(job, indent=1, sort_keys=True)
            if path.exists() and path.read_text() != text:
                raise ValueError(f"{path.parent} has other settings: choose another folder")
            write_atomically(path, text)

    def names(self) -> list[str]:
        """The names of all runs, sorted."""
        return sorted(path.parent.name for path in self.folder.glob("*/job.json"))

    def job(self, name: str) -> Job:
        """The settings of a run."""
        return read_json(self.folder / name / "job.json")

    def result(self, name: str) -> dict[str, Any] | None:
        """The result of a run; None if it is not finished."""
        return read_json(self.folder / name / "result.json") if self.finished(name) else None

    def required_result(self, name: str) -> dict[str, Any]:
        """The result of a run that another needs."""
        if (result := self.result(name)) is None:
            why = "failed" if name in self.failures() else "is not finished"
            raise RuntimeError(f"this run needs {name}, which {why}")
        return result

    def finished(self, name: str) -> bool:
        """Whether a run has a result."""
        return (self.folder / name / "result.json").exists()

    def failures(self) -> dict[str, str]:
        """The error messages of the runs that failed."""
        found = {path.parent.name: path for path in sorted(self.folder.glob("*/error.txt"))}
        return {name: found[name].read_text().strip() for name in found if not self.finished(name)}

    def status(self, names: Sequence[str]) -> tuple[int, int, str]:
        """(percent done, percent total, status line), where each run counts 100 percent."""
        left, failed = [name for name in names if not self.finished(name)], self.failures()
        words, share = [f"{len(names) - len(left)} of {len(names)} runs"], 0
        if failures := sum(name in failed for name in left):
            words.append(f"{failures} failed")
        for name in left:
            with suppress(OSError):
                done, stage = (self.folder / name / "progress.txt").read_text().split(" ", 1)
                words.append(f"{run_title(self.job(name))}: {stage}")
                share += int(done)
        return 100 * (len(names) - len(left) + failures) + share, 100 * len(names), "; ".join(words)


@dataclass(frozen=True)
class Call:
    """What an executor calls for one run; its result or its error is in the folder afterwards."""

    folder: Path
    run: RunJob
    threads: int | None = None

    def __call__(self) -> None:
        if not (self.folder / "job.json").is_file():
            host = platform.node()
            raise FileNotFoundError(f"{host} cannot read {self.folder}; use a shared file system")
        if self.threads:
            torch.set_num_threads(self.threads)
        # Another process may still work on this run, if the cluster lost it but did not stop it.
        with FileLock(self.folder / ".lock"):
            if (self.folder / "result.json").exists():
                return
            try:
                result = self.run(self.folder, read_json(self.folder / "job.json"), self._noting())
                write_atomically(self.folder / "result.json", json.dumps(result, indent=1))
            except Exception as error:  # of any kind: other runs continue
                expected = isinstance(error, ValueError | RuntimeError | OSError | ImportError)
                message = str(error) if expected else f"{type(error).__name__}: {error}"
                write_atomically(self.folder / "error.txt", f"{message}\n")
            finally:
                (self.folder / "progress.txt").unlink(missing_ok=True)

    def _noting(self) -> Progress:
        last, highest, stage = 0.0, 0, ""

        def progress(done: int, total: int, label: str) -> None:
            nonlocal last, highest, stage
            highest = max(highest, 100 * done // max(total, 1))
            if label != stage or time.monotonic() - last > NOTE_EVERY:
                last, stage = time.monotonic(), label
                with suppress(OSError):  # a note is not worth a run
                    write_atomically(self.folder / "progress.txt", f"{highest} {label}")

        progress(0, 1, "starting")
        return progress

    def checkpoint(self) -> Any:
        """Called by submitit when Slurm pre-empts the run: requeue it; it resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def run_all(
    runs: Runs, names: Sequence[str], run: RunJob, executor: Executor, *,
    threads: int | None = None, progress: Progress | None = None,
) -> None:  # fmt: skip
    """Run all named runs that are not finished; each waits for the runs whose results it needs.

    executor: any whose `submit` returns objects with `done`, `result` and `cancel`. Failed runs
    are tried again.
    """
    left = {name: set(_needed(runs.job(name))) for name in names if not runs.finished(name)}
    for name in left:
        for old in ("error.txt", "progress.txt"):
            (runs.folder / name / old).unlink(missing_ok=True)
    futures: dict[str, Any] = {}
    try:
        while left or futures:
            waiting = left.keys() | futures.keys()
            for name in [name for name, needed in left.items() if not needed & waiting]:
                del left[name]
                futures[name] = executor.submit(Call(runs.folder / name, run, threads))
            if progress:
                progress(*runs.status(names))
            time.sleep(POLL)
            for name in [name for name, future in futures.items() if future.done()]:
                _keep_error(futures.pop(name), runs.folder / name)
    finally:
        for future in futures.values():
            future.cancel()
    if failed := {name: text for name, text in runs.failures().items() if name in names}:
        first = next(iter(failed))
        message = f"{first}: {failed[first]}. Run the same command again to retry them."
        raise RunsFailed(f"{len(failed)} of {len(names)} runs failed; {message}")


class RunsFailed(RuntimeError):
    """Some runs of a comparison failed; all others are finished."""


def _needed(job: Job) -> Iterator[str]:
    """The runs whose results or weights a run needs."""
    for choice in job.get("choices", []):
        yield from choice["among"]
    if "start" in job:
        yield job["start"]


def _keep_error(future: Any, folder: Path) -> None:
    """Keep the error of a run that its executor could not finish, such as a dead process."""
    try:
        future.result()
    except Exception as error:
        if not (folder / "result.json").exists():
            words = str(error).strip() or type(error).__name__
            write_atomically(folder / "error.txt", words.splitlines()[-1] + "\n")
