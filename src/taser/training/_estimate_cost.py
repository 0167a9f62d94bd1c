"""What a run will cost, from a few steps on a small batch."""

import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from taser.data import Batch

from ._build import Setup

SMALLEST = 8  # examples in the first step that is timed; then twice as many,
ENOUGH = 2.0  # until a step takes so many seconds, or the batch is whole


@dataclass(frozen=True)
class Estimate:
    """Rough figures: the time is of this machine and scales with the batch, validation excluded.

    parameters: how many; steps: of the run; seconds: for all of them; memory: bytes at the peak, as
    measured, and what the backward pass of a whole batch keeps beyond that.
    """

    parameters: int
    steps: int
    seconds: float
    memory: int

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters · {self.steps:,} steps · about "
            f"{_duration(self.seconds)} here · about {self.memory / 2**30:.1f} GiB"
        )


def estimate(setup: Setup) -> Estimate:
    """Time and memory of the run; the steps that are timed change the model's statistics."""
    learner, whole = setup.learner, setup.batches.batch_size
    for group in learner.optimiser.param_groups:
        group["lr"] = 0.0  # the same batch again and again would end in infinities
    batch = next(iter(setup.batches))
    setup.batches.position = 0
    batch = batch._replace(x=batch.x.contiguous(memory_format=setup.layout))
    size = min(SMALLEST, whole)
    seconds, kept = _measured(setup, batch, size)
    while size < whole and seconds < ENOUGH:
        size = min(2 * size, whole)
        seconds, kept = _measured(setup, batch, size)
    more = kept * (whole / size - 1) / learner.parts  # than the steps that were timed have held
    parameters = sum(p.numel() for p in learner.module.parameters())
    memory = _peak(setup.device) + int(more)
    return Estimate(parameters, setup.steps, seconds * whole / size * setup.steps, memory)


def _measured(setup: Setup, batch: Batch, size: int) -> tuple[float, int]:
    """Seconds of a step on `size` examples, and the bytes that its backward pass needs.

    The first step at each size also compiles and allocates, and is not timed. A lazy penalty comes
    in one step of several: the mean of a whole round, and the most bytes of it.
    """
    x, y, s = batch.x[:size], batch.y[:size], None if batch.s is None else batch.s[:size]
    _step(setup, x, y, s, 0)
    regulariser = setup.learner.regulariser
    every = 1 if regulariser is None else regulariser.every
    steps = [_step(setup, x, y, s, number) for number in range(every)]
    return sum(seconds for seconds, _ in steps) / len(steps), max(kept for _, kept in steps)


def _step(setup: Setup, x: Tensor, y: Tensor, s: Tensor | None, number: int) -> tuple[float, int]:
    generator = torch.Generator(setup.device).manual_seed(0)
    setup.generator.manual_seed(0)
    setup.learner.number = number
    weight = setup.config.regulariser.weight
    begun = time.perf_counter()
    with _SavedBytes() as saved:
        setup.learner.step(x, y, s, generator, weight=weight, perturb=setup.config.objective.awp)
    if setup.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun, saved.bytes


class _SavedBytes:
    """Counts the bytes that autograd keeps for the backward pass, each storage once."""

    def __enter__(self) -> "_SavedBytes":
        self._seen: dict[int, int] = {}
        self._hooks: Any = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> Tensor:
        try:
            storage = tensor.untyped_storage()
            self._seen[storage.data_ptr()] = storage.nbytes()
        except RuntimeError:  # a wrapper of torch.func, whose inside is counted elsewhere
            pass
        return tensor

    @property
    def bytes(self) -> int:
        return sum(self._seen.values())


def _peak(device: torch.device) -> int:
    """The most bytes held so far: by tensors on a GPU, else by the process with all its libraries.

    Zero on Windows, which does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
