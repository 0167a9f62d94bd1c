"""What each switch saves, alone: of adversarial training, and of TASER on standard training."""

import platform
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .measure import timed
from .overhead import PLAIN_LOOP, Workload, plain_pgd_loop, stepper_of
from .queue import Progress

WORKLOAD = Workload(16, 128)
PLAIN = ["loop.fold=false", "loop.channels_last=false"]
TASER = ["regulariser.name=taser", "regulariser.fraction=1.0"]
PAPER = [*TASER, "regulariser.at=clean", "regulariser.operator=langevin",
         "regulariser.backend=reverse"]  # fmt: skip

ATTACK: dict[str, list[str] | None] = {
    PLAIN_LOOP: None,
    "parameters frozen in the attack": PLAIN,
    "+ channels_last": ["loop.fold=false"],
    "+ BatchNorm folded (default)": [],
    "+ torch.compile": ["loop.compile=true"],
}
PENALTY: dict[str, list[str]] = {
    "no penalty": [],
    "the paper's way": PAPER,
    "first order alone": [*PAPER, "regulariser.operator=first_order"],
    "first order by differences": [*TASER, "regulariser.at=clean"],
    "+ score at noised points": TASER,
    "+ a quarter of the batch (default)": ["regulariser.name=taser"],
    "+ every second step": ["regulariser.name=taser", "regulariser.every=2"],
}


@dataclass(frozen=True)
class Saving:
    """One setting: seconds of a step, and its ratio to the first of its group."""

    group: str
    name: str
    seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float


def measure(*, repetitions: int = 5, progress: Progress | None = None) -> dict[str, Any]:
    """Both groups, repetitions interleaved; JSON."""
    savings = [
        *_group("PGD training", "pgd", ATTACK, repetitions, progress),
        *_group("standard training with TASER", "standard", PENALTY, repetitions, progress),
    ]
    return {
        "torch": torch.__version__, "machine": platform.machine(),
        "threads": torch.get_num_threads(), "repetitions": repetitions, "workload": WORKLOAD.name,
        "savings": [asdict(saving) for saving in savings],
    }  # fmt: skip


def _group(
    group: str,
    method: str,
    settings: dict[str, Any],
    repetitions: int,
    progress: Progress | None,
) -> list[Saving]:
    steps = {
        name: (plain_pgd_loop(WORKLOAD), 1) if overrides is None
        else stepper_of(WORKLOAD, method, overrides)
        for name, overrides in settings.items()
    }  # fmt: skip
    for step, _ in steps.values():
        step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for repetition in range(repetitions):
        for name, (step, count) in steps.items():
            taken[name].append(timed(step) / count)
        if progress:
            progress(repetition + 1, repetitions, group)
    first = taken[next(iter(taken))]
    found = []
    for name, seconds in taken.items():
        ratios = [own / base for own, base in zip(seconds, first, strict=True)]
        found.append(
            Saving(group, name, statistics.median(seconds), statistics.median(ratios),
                   min(ratios), max(ratios))
        )  # fmt: skip
    return found
