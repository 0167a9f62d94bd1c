"""One attack on one set of examples, batch by batch."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from taser.attacks import Attack, AttackWarning, Model
from taser.attacks.cascade import stages_of
from taser.attacks.inside import inside

from .answers import answers
from .findings import Finding
from .provenance import generator_for, seeded
from .store import Batch, Store
from .verdicts import Verdicts

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
