"""Seconds and peak memory of a function, and the output of every benchmark."""

import argparse
import json
import math
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def parser(description: str | None, repetitions: int | None = None) -> argparse.ArgumentParser:
    """The options that benchmarks share; `description` is a module's docstring."""
    options = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    options.add_argument("--out", type=Path, default=RESULTS, help="folder for the .json and .md")
    options.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    if repetitions is not None:
        options.add_argument("--repetitions", type=int, default=repetitions, help="of every timing")
    return options


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A Markdown table, numbers to the right, its caption below."""
    rule = ":--" + "|--:" * (len(headings) - 1)
    body = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return f"| {' | '.join(headings)} |\n|{rule}|\n{body}\n" + (f"\n{caption}\n" if caption else "")


def write(out: Path, name: str, title: str, result: Any, tables: Sequence[str]) -> None:
    """<name>.json and <name>.md in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / f"{name}.md").write_text("\n".join([f"# {title}\n", *tables]))


def timed(work: Callable[[], Any]) -> float:
    """Seconds of one call."""
    _wait()
    start = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    """Wait until the GPU has finished."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


@dataclass(frozen=True)
class Timing:
    """Seconds of one step, the median; and its ratio to the first of those timed together.

    ratio: the median over repetitions, each within itself; ratio_low, ratio_high: their range.
    """

    seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float


Stepper = tuple[Callable[[], Any], int]
"""Work to be timed, and how many steps it makes."""


SHORTEST = 0.05  # seconds of one timing: shorter work is repeated


def interleaved(steppers: Mapping[str, Stepper], repetitions: int) -> dict[str, Timing]:
    """Time all in turn, repeatedly, so that a slow moment of the machine affects all alike."""
    first, rounds = next(iter(steppers)), {}
    for name, (work, _) in steppers.items():
        work()
        rounds[name] = math.ceil(SHORTEST / timed(work))
    seconds: dict[str, list[float]] = {name: [] for name in steppers}
    ratios: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(repetitions):
        for name, (work, steps) in steppers.items():
            taken = timed(lambda work=work, n=rounds[name]: [work() for _ in range(n)])  # type: ignore[misc]
            seconds[name].append(taken / (steps * rounds[name]))
            ratios[name].append(seconds[name][-1] / seconds[first][-1])
    middle = statistics.median
    return {
        name: Timing(middle(seconds[name]), middle(found), min(found), max(found))
        for name, found in ratios.items()
    }


def circumstances() -> dict[str, Any]:
    """Versions, machine and threads of a measurement."""
    return {
        "torch": torch.__version__, "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def peak_growth(work: Callable[[], Any]) -> int:
    """Bytes by which the resident set of this process grows, at its peak, in one call."""
    forget = Path("/proc/self/clear_refs")
    if forget.exists():  # Linux; elsewhere the peak is that of the whole life of the process
        forget.write_text("5")
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """The result of `function` in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as fresh:
        return fresh.submit(function, *args).result()


def _resident(field: str) -> int:
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    import resource  # which Windows lacks

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
