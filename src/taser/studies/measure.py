"""Seconds and peak memory of a piece of work."""

import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any


def timed(work: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_growth(work: Callable[[], Any]) -> int:
    """Bytes by which the resident set of this process grows, at its peak, in one call."""
    forget = Path("/proc/self/clear_refs")
    if forget.exists():  # Linux; elsewhere the peak is that of the whole life of the process
        forget.write_text("5")
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """What `function` gives in a process that has done nothing else."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as fresh:
        return fresh.submit(function, *args).result()


def _resident(field: str) -> int:
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
