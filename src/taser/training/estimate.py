"""What a run will cost, from a few steps on a small batch."""

import resource
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .setup import Setup

SMALLEST = 8  # examples in the first step that is timed; then twice as many,
ENOUGH = 2.0  # until a step takes so many seconds, or the batch is whole


@dataclass(frozen=True)
class Estimate:
    """Rough figures: the time is of this machine and scales with the batch, validation excluded.

    parameters: how many; steps: of the run; seconds: for all of them; memory: bytes at the peak,
    of weights, gradients, optimiser and what the backward pass keeps.
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
    """Time and memory of the run; the model is changed by the steps that are timed."""
    learner, config, whole = setup.learner, setup.config, setup.batches.batch_size
    awp = config.objective.awp
    size = min(SMALLEST, whole)
    _step(setup, size, awp)  # the first one also compiles, allocates and looks at the model
    seconds, kept = _step(setup, size, awp)
    while size < whole and seconds < ENOUGH:
        size = min(2 * size, whole)
        seconds, kept = _step(setup, size, awp)
    weights = sum(p.numel() * p.element_size() for p in learner.module.parameters())
    # weights, gradients, two moments; the average, the teacher and AWP's moves if there are any
    copies = 4 + (setup.average is not None) + (learner.teacher is not None) + awp
    memory = copies * weights + int(kept * whole / size / config.loop.accumulate) + _resident()
    parameters = sum(p.numel() for p in learner.module.parameters())
    return Estimate(parameters, setup.steps, seconds * whole / size * setup.steps, memory)


def _step(setup: Setup, size: int, awp: bool) -> tuple[float, int]:
    """Seconds of one step on `size` examples, and the bytes that its backward pass needs."""
    batch = next(iter(setup.batches))
    setup.batches.position = 0
    x, y, s = batch.x[:size], batch.y[:size], None if batch.s is None else batch.s[:size]
    generator = torch.Generator(setup.device).manual_seed(0)
    setup.generator.manual_seed(0)
    begun = time.perf_counter()
    with _SavedBytes() as saved:
        setup.learner.step(x, y, s, generator, weight=1.0, perturb=awp)
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


def _resident() -> int:
    """What the process holds by now: the interpreter, the libraries and the data."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
