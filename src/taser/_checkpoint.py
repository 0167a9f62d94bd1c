"""Checkpoints: safetensors and JSON with checksums.

Accelerate's save_state pickles the optimiser's state, which could run code from elsewhere.
"""

import hashlib
import json
import logging
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from taser._files import read_json, write_atomically

logger = logging.getLogger(__name__)
KEPT = 2  # the last, and the one before it should the last be damaged


class DamagedCheckpoint(ValueError):
    """A checkpoint whose files are missing, cut short or changed."""


@dataclass(frozen=True)
class Checkpoint:
    """tensors: by group ("model", "optimiser", …), then by name; state: anything JSON can hold."""

    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


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
        record = read_json(path / "state.json")
        if _sum(record["state"]) != record["state_sha256"]:
            raise ValueError("state.json is not what was written")
        tensors = {}
        for group, expected in record["sha256"].items():
            content = (path / f"{group}.safetensors").read_bytes()
            if hashlib.sha256(content).hexdigest() != expected:
                raise ValueError(f"{group}.safetensors is not what was written")
            tensors[group] = load(content)
        return Checkpoint(tensors, record["state"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path} is damaged: {error}") from error


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there never was one."""
    if folder.is_file():
        raise DamagedCheckpoint(f"{folder} should be a folder of checkpoints; it is a file")
    for path in reversed(_steps(folder)):
        try:
            return load_checkpoint(path)
        except DamagedCheckpoint as error:
            logger.warning("%s; using the one before it", error)
    if _steps(folder):
        raise DamagedCheckpoint(f"no checkpoint in {folder} can be read; remove the folder")
    return None


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints and the lock, and the folder unless it holds other things."""
    for path in _steps(folder):
        shutil.rmtree(path)
    (folder / ".lock").unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def weights_as_bytes(tensors: dict[str, Tensor]) -> bytes:
    """The content of a safetensors file. Each tensor is copied: tied weights share their memory."""
    flat = torch.contiguous_format
    return save({k: v.detach().cpu().clone(memory_format=flat) for k, v in tensors.items()})


def _sum(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []
