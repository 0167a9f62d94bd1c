"""Attacks by the names that the command line uses."""

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from taser._files import write_atomically
from taser._progress import Progress
from taser.attacks import (
    FGSM,
    SPSA,
    Attack,
    AttackWarning,
    AutoAttackPart,
    Model,
    RandomNoise,
    RestartedPGD,
    Threat,
    autoattack,
    cross_entropy,
)
from taser.attacks._attack import stages_of
from taser.attacks._autoattack import Part
from taser.attacks._threat import inside

from ._record import Finding, Verdicts, answers, generator_for, seeded


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


Tick = Callable[[Attack, Attack, Tensor, Tensor], None]
"""Told the attack, its stage, the rows that were done, and (n,) which examples still stand."""


@dataclass(frozen=True)
class Trial:
    """Who is attacked, and who judges: the model as it was given.

    model: gives the verdicts; quick: the same model, made ready, which attacks ask; x: (n, *);
    y: (n,). An attack's word is not taken for anything: its points are judged and measured here.
    """

    model: Model
    quick: Model
    x: Tensor
    y: Tensor
    seed: int
    batch_size: int
    store: Store

    def right(self, x: Tensor, y: Tensor) -> Tensor:
        """Whether the model answers rightly. x: (B, *); y: (B,) → (B,)."""
        return answers(self.model, x, self.batch_size) == y

    def run(
        self, attack: Attack, clean: Tensor, tick: Tick
    ) -> tuple[Verdicts, Tensor, list[Finding]]:
        """Attack every example that is right when clean, (n,): verdicts, points, findings.

        Stages of a cascade come one after the other over all examples, each on those that stand,
        in full batches: an example that is broken costs nothing more.
        """
        standing, points = clean.clone(), self.x.cpu().clone()
        distance, stage_of = torch.zeros(len(clean)), torch.full((len(clean),), -1)
        findings: list[Finding] = []
        seconds = 0.0
        stages = stages_of(attack)
        for place, stage in enumerate(stages):
            for number, rows in enumerate(batches(standing, self.batch_size)):
                key = f"{attack.name}.{place}-{stage.name}.{number:05d}"
                batch = self.store.get(key, rows)
                if batch is None:
                    batch = self._attempt(stage, rows, key)
                    self.store.put(key, batch)
                hit = rows[batch.broken]
                standing[hit] = False
                points[hit] = batch.points.to(points)
                distance[hit] = batch.distance[batch.broken].to(distance)
                stage_of[hit] = place
                findings += batch.findings
                seconds += batch.seconds
                tick(attack, stage, rows, standing)
        names = tuple(stage.name for stage in stages)
        return Verdicts(standing, distance, stage_of, names, seconds), points, findings

    def _attempt(self, stage: Attack, rows: Tensor, key: str) -> Batch:
        x, y = self.x[rows], self.y[rows]
        start = time.perf_counter()
        generator = generator_for(x.device, self.seed, key)
        with seeded(x.device, generator.initial_seed()):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                moved = stage(self.quick, x, y, generator=generator).detach()
            if moved.shape != x.shape:
                raise ValueError(f"{stage.name} gave {tuple(moved.shape)} for {tuple(x.shape)}")
            wrong = ~self.right(moved, y)
        findings = told(caught, stage.name)
        allowed = inside(stage.threat, moved, x)
        if strays := int((wrong & ~allowed).sum()):
            message = f"{strays} inputs left {stage.threat} or the box, and were not counted"
            findings.append(Finding(f"{stage.name} strays", message))
        broken = wrong & allowed
        distance = torch.where(broken, stage.threat.distance(moved, x), 0.0)
        return Batch(
            rows.cpu(), broken.cpu(), distance.cpu(), moved[broken].cpu(), tuple(findings),
            time.perf_counter() - start,
        )  # fmt: skip


def batches(standing: Tensor, size: int) -> list[Tensor]:
    """The rows that stand, `size` at a time; none if none does. standing: (n,) bool."""
    return [rows for rows in standing.nonzero()[:, 0].split(size) if len(rows)]


def told(caught: list[warnings.WarningMessage], name: str) -> list[Finding]:
    """Attacks' warnings as findings; others are passed on."""
    findings = []
    for warning in caught:
        if issubclass(warning.category, AttackWarning):
            findings.append(Finding(name, str(warning.message)))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return findings


class Meter:
    """Adds up passes as batches finish; what a broken example is spared counts as done."""

    def __init__(self, progress: Progress | None, attacks: Sequence[Attack], clean: Tensor) -> None:
        self._tell = progress or (lambda _done, _total, _label: None)
        self._attacks, self._examples = attacks, int(clean.sum())
        self._left = {a.name: [len(clean.nonzero()) for _ in stages_of(a)] for a in attacks}
        self._tell(0, self.total, f"clean {100 * float(clean.float().mean()):.1f} %")

    @property
    def total(self) -> int:
        """The passes of an evaluation in which nothing breaks."""
        return max(1, self._examples * sum(_cost(s) for a in self._attacks for s in stages_of(a)))

    def tick(self, attack: Attack, stage: Attack, rows: Tensor, standing: Tensor) -> None:
        """A batch is done: `rows` of it, and (n,) which examples stand now."""
        left, stages = self._left[attack.name], list(stages_of(attack))
        place = stages.index(stage)
        left[:place] = [0] * place
        left[place] = max(0, left[place] - len(rows))
        left[place + 1 :] = [int(standing.sum())] * (len(stages) - place - 1)
        to_do = sum(
            count * _cost(stage)
            for a in self._attacks
            for count, stage in zip(self._left[a.name], stages_of(a), strict=True)
        )
        name = attack.name if len(stages) == 1 else f"{attack.name} {stage.name}"
        robust = 100 * float(standing.float().mean())
        self._tell(self.total - to_do, self.total, f"{name}, robust so far {robust:.1f} %")


def _cost(stage: Attack) -> int:
    return getattr(stage, "passes", 1000)


OURS: dict[str, Callable[[Threat], Attack]] = {
    "spsa": SPSA,
    "spsa-strong": SPSA.strong,
    "pgd": RestartedPGD,
    "pgd-ce": lambda threat: RestartedPGD(threat, loss=cross_entropy, name="pgd-ce"),
    "fgsm": FGSM,
    "noise": RandomNoise,
}
NAMES = ("autoattack", *OURS, *get_args(Part))


def named_attack(name: str, threat: Threat, *, classes: int, images: bool, seed: int) -> Attack:
    """The attack called `name`, for a model with so many classes.

    images: whether inputs are (C, H, W); seed: AutoAttack's own.
    """
    if name in OURS:
        return OURS[name](threat)
    if name == "autoattack":
        return autoattack(threat, classes=classes, images=images, seed=seed)
    if name not in get_args(Part):
        raise ValueError(f"an attack should be one of {', '.join(NAMES)}; got {name!r}")
    if (name == "apgd-t" and classes < 4) or (name == "apgd-dlr" and classes < 3):
        raise ValueError(f"{name} cannot be had with {classes} classes: take 'autoattack' or 'pgd'")
    if name == "square" and threat.norm == "l2" and not images:
        raise ValueError("square in ℓ2 is for images, (C, H, W): take 'autoattack' or 'spsa'")
    return AutoAttackPart(name, threat, seed)  # type: ignore[arg-type]
