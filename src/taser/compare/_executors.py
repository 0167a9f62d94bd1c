"""Executors for the runs of a comparison: local processes, Dask, and Slurm by submitit."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

SPAWN = get_context("spawn")
HOURS = 12  # limit of a Slurm job, unless `timeout_min` is given


class LocalProcesses(Executor):
    """Each call in a new process, `jobs` at a time; each process gets one GPU, if there are any.

    If a process dies, the others continue; all of them end when this process ends.
    """

    def __init__(self, jobs: int) -> None:
        self._threads = ThreadPoolExecutor(jobs)
        self._running: set[BaseProcess] = set()
        gpus = list(map(str, range(torch.cuda.device_count())))
        if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
            gpus = visible.split(",")[: len(gpus)]
        self._places: SimpleQueue[str | None] = SimpleQueue()
        for place in range(jobs):
            self._places.put(gpus[place % len(gpus)] if gpus else None)

    def submit(self, call: Callable, /, *arguments: Any, **options: Any) -> Future:
        """A future that is done when the process has ended; the return value is dropped."""
        return self._threads.submit(self._run, partial(call, *arguments, **options))

    def _run(self, call: Callable) -> None:
        place = self._places.get()
        process = SPAWN.Process(target=_in_process, args=(place, call), daemon=True)
        process.start()
        self._running.add(process)
        process.join()
        self._running.remove(process)
        self._places.put(place)
        if process.exitcode:
            code = f"its process ended with exit code {process.exitcode}"
            raise RuntimeError(f"{code}, stopped or out of memory")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Terminate the running processes."""
        self._threads.shutdown(wait=False, cancel_futures=cancel_futures)
        for process in list(self._running):
            process.terminate()
        self._threads.shutdown(wait)


def _in_process(gpu: str | None, call: Callable) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    call()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """All workers of a Dask scheduler; a run is restarted elsewhere if its worker dies."""
    try:
        from distributed import Client
    except ImportError:
        raise ImportError("a cluster needs Dask: pip install 'distributed>=2024.8'") from None
    with Client(address) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        if wide := [name for name, worker in workers.items() if worker["nthreads"] > 1]:
            raise ValueError(f"workers take one run at a time: start {wide[0]} with --nthreads 1")
        yield client.get_executor()


def slurm_executor(settings: str, folder: Path) -> Any:
    """Jobs of Slurm by submitit, which keeps their logs in `folder`.

    settings: arguments of submitit's `update_parameters`, "timeout_min=600 slurm_partition=gpu";
    `cluster=local` runs the jobs on this machine, without Slurm.
    """
    try:
        import submitit
    except ImportError:
        raise ImportError("Slurm needs submitit: pip install 'submitit>=1.5'") from None
    given: dict[str, Any] = {}
    for name, equals, value in (word.partition("=") for word in settings.split()):
        if not equals:
            example = '--slurm "timeout_min=600 slurm_partition=gpu"'
            raise ValueError(f"--slurm takes settings such as {example}; got {name!r}")
        given[name] = int(value) if value.isdecimal() else value
    try:
        executor = submitit.AutoExecutor(folder, cluster=given.pop("cluster", "slurm"))
        executor.update_parameters(**{"name": "taser", "timeout_min": 60 * HOURS, **given})
    except (NameError, TypeError, ValueError) as error:
        raise ValueError(f"--slurm {settings!r}: {error}") from None
    return executor
