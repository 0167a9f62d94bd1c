"""Checkpoints: safetensors and JSON with checksums.

Accelerate's save_state pickles the optimiser's state, which could run code from elsewhere.
"""

import hashlib
import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from taser._files import write_atomically

from ._build import Setup
from ._validation import ValidationMetrics

logger = logging.getLogger(__name__)
KEPT = 2  # the last, and the one before it should the last be damaged


@dataclass
class RunState:
    """How far a run is.

    step: steps done; measured: the gradient ratio that λ is multiplied with; weight: λ of now, if a
    target for the loss decides it; best, best_step: the
    best validation; stale: how many validations since the chosen figure rose; seconds: of training;
    sums, summed: of the log's next line, in whose middle a checkpoint may come.
    """

    step: int = 0
    measured: float | None = None
    weight: float | None = None
    best: ValidationMetrics | None = None
    best_step: int = 0
    stale: int = 0
    seconds: float = 0.0
    sums: dict[str, Tensor | float] = field(default_factory=dict)
    summed: int = 0


class DamagedCheckpoint(ValueError):
    """A checkpoint whose files are missing, cut short or changed."""


@dataclass(frozen=True)
class Checkpoint:
    """tensors: by group ("model", "optimiser", …), then by name; state: anything JSON can hold."""

    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def to_checkpoint(setup: Setup, state: RunState) -> Checkpoint:
    """What a resumed run needs; of several processes, the first's BatchNorm statistics."""
    tensors = {name: module.state_dict() for name, module in _modules(setup).items()}
    tensors["optimiser"] = optimiser_tensors(setup.learner.optimiser)
    if setup.learner.regulariser is not None and (centre := setup.learner.regulariser.state()):
        tensors["centre"] = centre
    sums = {name: float(value) for name, value in state.sums.items()}
    return Checkpoint(tensors, {
        "progress": {**asdict(state), "sums": sums},
        "batches": setup.batches.state_dict(),
        "scaler": setup.learner.precision.scaler.state_dict(),
        "data": setup.dataset.hash,
    })  # fmt: skip


def from_checkpoint(setup: Setup, checkpoint: Checkpoint) -> RunState:
    """Put a checkpoint back into a run that was just set up."""
    state = checkpoint.state
    if state["data"] != setup.dataset.hash:
        raise ValueError("the data are not those that this run began with: start a new one")
    for name, module in _modules(setup).items():
        module.load_state_dict(checkpoint.tensors[name])
    if setup.learner.regulariser is not None and "centre" in checkpoint.tensors:
        setup.learner.regulariser.load_state(checkpoint.tensors["centre"])
    restore_optimiser(setup.learner.optimiser, checkpoint.tensors["optimiser"])
    setup.batches.load_state_dict(state["batches"])
    if state["scaler"]:
        setup.learner.precision.scaler.load_state_dict(state["scaler"])
    best = state["progress"]["best"]
    return RunState(**{**state["progress"], "best": ValidationMetrics(**best) if best else None})


def _modules(setup: Setup) -> dict[str, nn.Module]:
    """The parts of a run that have a state_dict, by their names in a checkpoint."""
    average = None if setup.average is None else setup.average.model
    found = {"model": setup.learner.module, "average": average, "teacher": setup.learner.teacher}
    return {name: module for name, module in found.items() if module is not None}


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of each parameter, by "number.name"; the settings are the configuration's."""
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, state in optimiser.state_dict()["state"].items()
        for name, value in state.items()
        if value is not None
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Undo :func:`optimiser_tensors`."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write folder/step-N. It appears under its name only when every byte is on the disk."""
    final, writing = folder / f"step-{step:09d}", folder / f".writing-{step:09d}"
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
            tensors[group] = load(content)
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
            f"none of the checkpoints in {folder} can be read; remove the folder"
        )
    return None


def weights_as_bytes(tensors: dict[str, Tensor]) -> bytes:
    """The content of a safetensors file. Each tensor is copied: tied weights share their memory."""
    flat = torch.contiguous_format
    return save({k: v.detach().cpu().clone(memory_format=flat) for k, v in tensors.items()})


def _sum(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []
