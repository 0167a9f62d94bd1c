"""How much more memory a training step needs with TASER; to be asked on a busy machine too."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import torch

from taser.compare._comparison_config import METHODS
from taser.compare._jobs import Progress

from .measure import circumstances, in_fresh_process, peak_growth
from .overhead import MODES, WORKLOADS, Workload, stepper

PROCESSES = 3  # whose peaks scatter by a tenth


@dataclass(frozen=True)
class Peak:
    """One method in one mode: bytes of a step at its peak, and their ratio to the method alone."""

    workload: str
    method: str
    mode: str
    bytes: float
    ratio: float


def peak_memory(workload: Workload, method: str, mode: str, threads: int) -> int:
    """Bytes of one step's peak: its activations, gradients and the optimiser's state.

    A step on two examples before it loads and allocates what is loaded only once. Attack steps
    follow each other in the same memory, so that one is enough.
    """
    torch.set_num_threads(threads)
    overrides = [*MODES[mode], "objective.steps=1"]
    warm_up, _ = stepper(replace(workload, batch=2), method, overrides)
    warm_up()
    return peak_growth(stepper(workload, method, overrides)[0])


def measure(
    workloads: Sequence[Workload] = WORKLOADS,
    methods: Sequence[str] = METHODS,
    *,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The median peak of a few processes for every method in every mode; JSON."""
    threads, steps = torch.get_num_threads(), count(1)
    total = len(workloads) * len(methods) * len(MODES)
    peaks: list[Peak] = []
    for workload in workloads:
        for method in methods:
            alone = None
            for mode in MODES:
                asked = (peak_memory, workload, method, mode, threads)
                found = statistics.median(in_fresh_process(*asked) for _ in range(PROCESSES))
                alone = alone or found
                peaks.append(Peak(workload.name, method, mode, found, found / alone))
                if progress:
                    progress(next(steps), total, f"{workload.name}, {method}")
    return {**circumstances(), "processes": PROCESSES, "peaks": [asdict(peak) for peak in peaks]}
