"""Where a run stands, and how that is written to a checkpoint and read back."""

import hashlib
import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor, nn

from taser._distributed import world_size
from taser._files import write_atomically

from ._build import Setup
from ._optimiser import optimiser_tensors, restore_optimiser
from ._validation import Scores

logger = logging.getLogger(__name__)
KEPT = 2  # the last, and the one before it should the last be damaged


class DamagedCheckpoint(ValueError):
    """A checkpoint whose files are missing, cut short or changed."""


@dataclass(frozen=True)
class Checkpoint:
    """tensors: by group ("model", "optimiser", …), then by name; state: anything JSON can hold."""

    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write folder/step-N. It appears under its name only when every byte is on the disk."""
    final = folder / f"step-{step:09d}"
    writing = folder / f".writing-{step:09d}"
    for left in folder.glob(".writing-*"):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    sums = {}
    for group, tensors in checkpoint.tensors.items():
        content = weights_as_bytes(tensors)
        write_atomically(writing / f"{group}.safetensors", content)
        sums[group] = hashlib.sha256(content).hexdigest()
    record = {"state": checkpoint.state, "state_sha256": _sum(checkpoint.state), "sha256": sums}
    write_atomically(writing / "state.json", json.dumps(record, indent=1))
    shutil.rmtree(final, ignore_errors=True)
    os.replace(writing, final)
    for old in _steps(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint; raise DamagedCheckpoint if anything is not as it was written."""
    try:
        record = json.loads((path / "state.json").read_text())
        if _sum(record["state"]) != record["state_sha256"]:
            raise ValueError("state.json is not what was written")
        tensors = {}
        for group, expected in record["sha256"].items():
            content = (path / f"{group}.safetensors").read_bytes()
            if hashlib.sha256(content).hexdigest() != expected:
                raise ValueError(f"{group}.safetensors is not what was written")
            tensors[group] = tensors_from(content)
        return Checkpoint(tensors, record["state"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{path} is damaged: {error}") from error


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there never was one."""
    found = _steps(folder)
    for path in reversed(found):
        try:
            return load_checkpoint(path)
        except DamagedCheckpoint as error:
            logger.warning("%s; going on from the one before it", error)
    if found:
        raise DamagedCheckpoint(
            f"none of the checkpoints in {folder} can be read; remove the folder to start anew"
        )
    return None


def weights_as_bytes(tensors: dict[str, Tensor]) -> bytes:
    """The content of a safetensors file. Each tensor is copied: tied weights share their memory."""
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return bytes_of(copies)


def _sum(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


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
    if learner.regulariser is not None and (centre := learner.regulariser.state()):
        tensors["centre"] = centre
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
    if learner.regulariser is not None and "centre" in tensors:
        learner.regulariser.load_state(tensors["centre"])
    setup.batches.load_state_dict(state["batches"])
    if state["scaler"]:
        learner.precision.scaler.load_state_dict(state["scaler"])
    return _progress(state["progress"])


def _progress(entries: dict[str, Any]) -> Progress:
    best = entries.pop("best")
    return Progress(**entries, best=Scores(**best) if best else None)


def same_statistics(module: nn.Module) -> None:
    """Give every process the mean of all running statistics: each saw its own part of the data."""
    if world_size() == 1:
        return
    for buffer in module.buffers():
        if buffer.is_floating_point():
            torch.distributed.all_reduce(buffer)
            buffer /= world_size()
