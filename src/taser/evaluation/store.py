"""Finished batches on disk, so that an evaluation that was killed goes on where it was."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from taser.files import write_atomically

from .findings import Finding


@dataclass(frozen=True)
class Batch:
    """What one stage of an attack did to a batch of R examples.

    rows: (R,) their numbers; broken: (R,) bool; distance: (R,), zero where it stands; points:
    (k, *), the inputs that broke k of them; findings; seconds.
    """

    rows: Tensor
    broken: Tensor
    distance: Tensor
    points: Tensor
    findings: tuple[Finding, ...]
    seconds: float


class OtherRun(ValueError):
    """A folder that holds the results of another evaluation."""


class Store:
    """A folder with a file for every finished batch, each whole or not there.

    settings: what the results depend on. A folder made with others is refused, for its batches
    would not fit. Without a folder nothing is kept.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        if folder is None:
            return
        path = folder / "settings.json"
        wanted = json.loads(json.dumps(settings))  # as it will be read back
        if path.exists():
            _check_same(json.loads(path.read_text()), wanted, folder)
        else:
            write_atomically(path, json.dumps(wanted, indent=1) + "\n")

    def get(self, key: str, rows: Tensor) -> Batch | None:
        """A finished batch of these rows, or None if it is still to do."""
        if self.folder is None or not (path := self._path(key)).exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — it is no dict
                said = json.loads(file.metadata()["said"])
        except (SafetensorError, OSError, KeyError, ValueError):
            return None  # damaged: done again
        done = tensors.get("rows", rows)  # older versions did not write them down
        if not torch.equal(done, rows) or len(tensors["broken"]) != len(rows):
            return None
        return Batch(
            rows, tensors["broken"].bool(), tensors["distance"], tensors["points"],
            tuple(Finding(**finding) for finding in said["findings"]), said["seconds"],
        )  # fmt: skip

    def put(self, key: str, batch: Batch) -> None:
        """Keep a finished batch."""
        if self.folder is None:
            return
        said = {"findings": [asdict(f) for f in batch.findings], "seconds": batch.seconds}
        tensors = {
            "rows": batch.rows,
            "broken": batch.broken.to(torch.uint8),
            "distance": batch.distance,
            "points": batch.points.contiguous(),
        }
        write_atomically(self._path(key), save(tensors, {"said": json.dumps(said)}))

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / "batches" / f"{key}.safetensors"


def _check_same(found: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    # What an older version did not write down is not known to differ.
    other = [name for name in wanted if name in found and found[name] != wanted[name]]
    if other:
        raise OtherRun(
            f"{folder} holds an evaluation with other {', '.join(other)}: choose another folder "
            "(--out), or remove that one to start anew"
        )
