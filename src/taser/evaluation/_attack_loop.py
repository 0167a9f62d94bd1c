"""Run attacks on a set of examples batch by batch: verified, resumable, with early exit."""

import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from taser._files import write_atomically
from taser._progress import Progress
from taser.attacks import Attack, AttackWarning, Model
from taser.attacks._attack import stages_of
from taser.attacks._threat import inside

from ._prepared_model import Differentiable, prepare
from ._record import Finding, Verdicts, generator_for, predictions, seeded


@dataclass(frozen=True)
class BatchResult:
    """What one stage of an attack did to a batch of R examples.

    rows: (R,) their numbers; broken: (R,) bool; distance: (R,), zero where not broken; points:
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


class BatchStore:
    """A folder with a file for every finished batch, written atomically.

    settings: what the results depend on. A folder made with others is refused. Without a folder
    nothing is stored.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        if folder is None:
            return
        path = folder / "settings.json"
        wanted = json.loads(json.dumps(settings))  # as it will be read back
        if not path.exists():
            write_atomically(path, json.dumps(wanted, indent=1) + "\n")
            return
        found = json.loads(path.read_text())  # an older version may have written fewer settings
        other = [name for name in wanted if name in found and found[name] != wanted[name]]
        if other:
            raise OtherRun(
                f"{folder} holds an evaluation with other {', '.join(other)}: choose another "
                "folder (--out), or remove that one to start anew"
            )

    def get(self, key: str, rows: Tensor) -> BatchResult | None:
        """A finished batch of these rows, or None if there is none."""
        if self.folder is None or not (path := self._path(key)).exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — it is no dict
                metadata = file.metadata()
                record = json.loads(metadata.get("record") or metadata["said"])  # the older key
        except (SafetensorError, OSError, KeyError, ValueError):
            return None  # damaged: attacked again
        done = tensors.get("rows", rows)  # older versions did not store them
        if not torch.equal(done, rows) or len(tensors["broken"]) != len(rows):
            return None
        return BatchResult(
            rows, tensors["broken"].bool(), tensors["distance"], tensors["points"],
            tuple(Finding(**finding) for finding in record["findings"]), record["seconds"],
        )  # fmt: skip

    def put(self, key: str, batch: BatchResult) -> None:
        """Store a finished batch."""
        if self.folder is None:
            return
        record = {"findings": [asdict(f) for f in batch.findings], "seconds": batch.seconds}
        tensors = {
            "rows": batch.rows,
            "broken": batch.broken.to(torch.uint8),
            "distance": batch.distance,
            "points": batch.points.contiguous(),
        }
        write_atomically(self._path(key), save(tensors, {"record": json.dumps(record)}))

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / "batches" / f"{key}.safetensors"


@dataclass(frozen=True)
class AttackLoop:
    """Runs attacks on one model and one set of examples.

    model: gives the verdicts; prepared: the same function, made faster, which attacks see; x:
    (n, *); y: (n,). Attacks are not trusted: their points are classified by `model`, and count only
    inside the threat's ball and box.
    """

    model: Model
    prepared: Model
    x: Tensor
    y: Tensor
    seed: int
    batch_size: int
    store: BatchStore = field(default_factory=lambda: BatchStore(None, {}))

    @classmethod
    def of(cls, model: Model, x: Tensor, y: Tensor, *options: Any) -> Self:
        """For a model that is prepared here; options: seed, batch_size and store."""
        return cls(model, Differentiable(prepare(model, x, y)), x, y, *options)

    def correct(self, x: Tensor, y: Tensor) -> Tensor:
        """Whether the model classifies each example correctly. x: (B, *); y: (B,) → (B,)."""
        return predictions(self.model, x, self.batch_size) == y

    def run(
        self,
        attack: Attack,
        correct: Tensor,
        *,
        key: str | None = None,
        progress: Progress | None = None,
    ) -> tuple[Verdicts, Tensor, list[Finding]]:
        """Attack the examples that are `correct`, (n,): verdicts, points (n, *), findings.

        Stages of a cascade come one after the other over all examples, each on those that are still
        correct, in full batches: broken examples cost nothing more.

        key: the attack's name, by which its batches are seeded and stored; progress: counted in
        forward passes, where what a broken example is spared counts as done.
        """
        key = key or attack.name
        correct, points = correct.clone(), self.x.cpu().clone()
        distance, stage_of = torch.zeros(len(correct)), torch.full((len(correct),), -1)
        findings: list[Finding] = []
        seconds = 0.0
        stages = stages_of(attack)
        costs = [passes_of(stage) for stage in stages]
        total = int(correct.sum()) * sum(costs)
        for place, stage in enumerate(stages):
            todo = correct.nonzero()[:, 0]
            label = attack.name if len(stages) == 1 else f"{attack.name} {stage.name}"
            for number, rows in enumerate(todo.split(self.batch_size) if len(todo) else ()):
                batch_key = f"{key}.{place}-{stage.name}.{number:05d}"
                batch = self.store.get(batch_key, rows)
                if batch is None:
                    batch = self._attack_batch(stage, rows, batch_key)
                    self.store.put(batch_key, batch)
                broken = rows[batch.broken]
                correct[broken] = False
                points[broken] = batch.points.to(points)
                distance[broken] = batch.distance[batch.broken].to(distance)
                stage_of[broken] = place
                findings += batch.findings
                seconds += batch.seconds
                if progress:
                    left = max(0, len(todo) - (number + 1) * self.batch_size) * costs[place]
                    left += int(correct.sum()) * sum(costs[place + 1 :])
                    robust = 100 * float(correct.float().mean())
                    progress(total - left, total, f"{label}, robust so far {robust:.1f} %")
        names = tuple(stage.name for stage in stages)
        return Verdicts(correct, distance, stage_of, names, seconds), points, findings

    def _attack_batch(self, stage: Attack, rows: Tensor, key: str) -> BatchResult:
        x, y = self.x[rows], self.y[rows]
        start = time.perf_counter()
        generator = generator_for(x.device, self.seed, key)
        with seeded(x.device, generator.initial_seed()):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                moved = stage(self.prepared, x, y, generator=generator).detach()
            if moved.shape != x.shape:
                raise ValueError(f"{stage.name} gave {tuple(moved.shape)} for {tuple(x.shape)}")
            wrong = ~self.correct(moved, y)
        findings = warnings_to_findings(caught, stage.name)
        allowed = inside(stage.threat, moved, x)
        if strays := int((wrong & ~allowed).sum()):
            message = f"{strays} inputs left {stage.threat} or the box, and were not counted"
            findings.append(Finding(f"{stage.name} strays", message))
        broken = wrong & allowed
        distance = torch.where(broken, stage.threat.distance(moved, x), 0.0)
        return BatchResult(
            rows.cpu(), broken.cpu(), distance.cpu(), moved[broken].cpu(), tuple(findings),
            time.perf_counter() - start,
        )  # fmt: skip


def passes_of(attack: Attack) -> int:
    """Forward passes that an attack costs at most for one example; 1000 if it does not say."""
    return sum(getattr(stage, "passes", 1000) for stage in stages_of(attack))


def warnings_to_findings(caught: list[warnings.WarningMessage], name: str) -> list[Finding]:
    """Attacks' warnings as findings; other warnings are issued again."""
    findings = []
    for warning in caught:
        if issubclass(warning.category, AttackWarning):
            findings.append(Finding(name, str(warning.message)))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return findings
