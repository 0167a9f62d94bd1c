"""What each switch saves, alone: of adversarial training, and of TASER on standard training."""

from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from taser.compare._jobs import Progress

from .measure import Stepper, Timing, circumstances, interleaved
from .overhead import PLAIN_LOOPS, Workload, plain_pgd_loop, stepper

WORKLOAD = Workload(16, 128)
PLAIN = ["loop.fold=false", "loop.channels_last=false"]
TASER = ["regulariser.name=taser", "regulariser.fraction=1.0"]
DRAWN = [*TASER, "regulariser.at=paired", "regulariser.unit=noise", "regulariser.center=batch"]
CLEAN = [*DRAWN, "regulariser.at=clean"]
PAPER = [*CLEAN, "regulariser.operator=langevin", "regulariser.backend=reverse"]

ATTACK: dict[str, list[str]] = {
    "taser train": PLAIN,
    "+ channels_last": ["loop.fold=false"],
    "+ BatchNorm folded (default)": [],
    "+ torch.compile": ["loop.compile=true"],
}
PENALTY: dict[str, list[str]] = {
    "no penalty": [],
    "the paper's way": PAPER,
    "first order alone": [*PAPER, "regulariser.operator=first_order"],
    "first order by differences": CLEAN,
    "+ scores in pairs": DRAWN,
    "+ in the steepest direction": TASER,
    "+ a quarter of the batch (default)": ["regulariser.name=taser"],
    "+ every second step": ["regulariser.name=taser", "regulariser.every=2"],
}


@dataclass(frozen=True)
class Saving:
    """One setting; the ratio of its timing is to the first of its group."""

    group: str
    name: str
    timing: Timing


def measure(*, repetitions: int = 5, progress: Progress | None = None) -> dict[str, Any]:
    """Both groups, repetitions interleaved; JSON."""
    attack = {name: (plain_pgd_loop(WORKLOAD, whole), 1) for name, whole in PLAIN_LOOPS.items()}
    groups = {
        "PGD training": {**attack, **_steppers("pgd", ATTACK)},
        "standard training with TASER": _steppers("standard", PENALTY),
    }
    ticks = count(1)

    def tick() -> None:
        if progress:
            progress(next(ticks), len(groups) * repetitions, "switches")

    savings = [
        asdict(Saving(group, name, timing))
        for group, steppers in groups.items()
        for name, timing in interleaved(steppers, repetitions, tick).items()
    ]
    return {**circumstances(), "repetitions": repetitions, "workload": WORKLOAD.name,
            "savings": savings}  # fmt: skip


def _steppers(method: str, settings: dict[str, list[str]]) -> dict[str, Stepper]:
    return {name: stepper(WORKLOAD, method, overrides) for name, overrides in settings.items()}
