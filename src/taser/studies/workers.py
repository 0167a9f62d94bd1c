"""Worker processes of a queue: started together, watched, and stopped together."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .queue import Progress, Queue


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
