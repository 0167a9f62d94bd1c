"""Where a run stands, and how that is written to a checkpoint and read back."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from taser.objectives import Taser
from taser.stein.part import processes

from .checkpoint import Checkpoint
from .optimiser import optimiser_tensors, restore_optimiser
from .setup import Setup
from .validation import Scores


@dataclass
class Progress:
    """Steps done; the λ that "ratio" measured; the best validation, and how many came
    since the figure that it is chosen by last rose.

    sums, summed: of the log's next line, which a checkpoint may come in the middle of.
    """

    step: int = 0
    measured: float | None = None
    best: Scores | None = None
    best_step: int = 0
    stale: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    summed: int = 0


def freeze(setup: Setup, progress: Progress) -> Checkpoint:
    """Everything that a resumed run needs, as tensors and JSON.

    Of several processes the first one's: inside an epoch each has BatchNorm statistics of its own,
    which only the epoch's end makes alike, so a run resumed from there begins with those of one.
    """
    learner = setup.learner
    tensors = {
        "model": learner.module.state_dict(),
        "optimiser": optimiser_tensors(learner.optimiser),
    }
    if setup.average is not None:
        tensors["average"] = setup.average.model.state_dict()
    if learner.teacher is not None:
        tensors["teacher"] = learner.teacher.state_dict()
    if (centre := _centre(setup)) is not None:
        tensors["centre"] = centre.state_dict()
    state = {
        "progress": asdict(progress),
        "batches": setup.batches.state_dict(),
        "scaler": learner.precision.scaler.state_dict(),
        "data": setup.dataset.hash,
    }
    return Checkpoint(tensors, state)


def thaw(setup: Setup, checkpoint: Checkpoint) -> Progress:
    """Put a checkpoint back into a run that was just set up."""
    learner, tensors, state = setup.learner, checkpoint.tensors, checkpoint.state
    if state["data"] != setup.dataset.hash:
        raise ValueError("the data are not those that this run began with: start a new one")
    learner.module.load_state_dict(tensors["model"])
    restore_optimiser(learner.optimiser, tensors["optimiser"])
    if setup.average is not None:
        setup.average.model.load_state_dict(tensors["average"])
    if learner.teacher is not None:
        learner.teacher.load_state_dict(tensors["teacher"])
    if (centre := _centre(setup)) is not None:
        centre.load_state_dict(tensors["centre"])
    setup.batches.load_state_dict(state["batches"])
    if state["scaler"]:
        learner.precision.scaler.load_state_dict(state["scaler"])
    return _progress(state["progress"])


def _progress(entries: dict[str, Any]) -> Progress:
    best = entries.pop("best")
    return Progress(**entries, best=Scores(**best) if best else None)


def _centre(setup: Setup) -> nn.Module | None:
    """The part of a regulariser that learns: a running centre."""
    regulariser = setup.learner.regulariser
    return regulariser.penalty.centre if isinstance(regulariser, Taser) else None


def same_statistics(module: nn.Module) -> None:
    """Give every process the mean of all running statistics: each saw its own part of the data."""
    if processes() == 1:
        return
    for buffer in module.buffers():
        if buffer.is_floating_point():
            torch.distributed.all_reduce(buffer)
            buffer /= processes()
