"""Time and memory of a run, estimated from a few steps on a small batch."""

import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from taser._files import duration
from taser.data import Batch

from ._build import Setup

SMALLEST = 8  # examples in the first timed step; each further one has twice as many
ENOUGH = 2.0  # seconds; a step that takes longer is the last


@dataclass(frozen=True)
class Estimate:
    """Rough figures for this machine, without validation; memory: peak, in bytes."""

    parameters: int
    steps: int
    seconds: float
    memory: int

    def __str__(self) -> str:
        steps = f"{self.parameters:,} parameters · {self.steps:,} steps"
        memory = f"{self.memory / 2**30:.1f} GiB"
        return f"{steps} · about {duration(self.seconds)} here · about {memory}"


def estimate(setup: Setup) -> Estimate:
    """Time and memory of the run; the timed steps change BatchNorm's running statistics."""
    learner, whole = setup.learner, setup.batches.batch_size
    for group in learner.optimiser.param_groups:
        group["lr"] = 0.0  # training on one batch again and again would diverge
    batch, every = next(iter(setup.batches)), getattr(learner.regulariser, "every", 1)
    setup.batches.position = 0
    size, seconds, kept = 0, 0.0, 0
    while size < whole and (not size or seconds < ENOUGH):
        size = min(2 * size or SMALLEST, whole)
        # The first step also compiles and allocates: dropped. With every=k the penalty runs in one
        # of k steps: time k steps, take mean time and peak memory.
        steps = [_timed_step(setup, batch, size, number) for number in (0, *range(every))][1:]
        seconds = sum(seconds for seconds, _ in steps) / every
        kept = max(kept for _, kept in steps)
    more = kept * (whole / size - 1) / learner.accumulate  # than in the timed steps
    parameters = sum(p.numel() for p in learner.module.parameters())
    memory = _peak(setup.device) + int(more)
    return Estimate(parameters, setup.steps, seconds * whole / size * setup.steps, memory)


def _timed_step(setup: Setup, batch: Batch, size: int, number: int) -> tuple[float, int]:
    """Seconds of a step on the first `size` examples, and the bytes that its backward keeps."""
    x = batch.x[:size].contiguous(memory_format=setup.layout)
    y = batch.y[:size]
    generator = torch.Generator(setup.device).manual_seed(0)
    setup.generator.manual_seed(0)
    setup.learner.step_number = number
    weight, awp = setup.config.regulariser.weight, setup.config.objective.awp
    kept: dict[int, int] = {}  # the bytes of each storage, by its address

    def pack(tensor: Tensor) -> Tensor:
        with suppress(RuntimeError):  # a torch.func wrapper, whose tensor is counted elsewhere
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    begun = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        setup.learner.step(x, y, generator, weight=weight, perturb=awp)
    if setup.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun, sum(kept.values())


def _peak(device: torch.device) -> int:
    """The most bytes held so far: by tensors on a GPU, else by the process; 0 on Windows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
