"""What each switch saves, alone: of adversarial training, and of TASER on standard training.

python benchmarks/switches.py --threads 1
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from measure import Stepper, circumstances, interleaved, markdown, parser, write
from training_steps import PLAIN_LOOPS, Workload, plain_pgd_loop, stepper

WORKLOAD = Workload(16, 128)
PLAIN = ["loop.fold=false", "loop.channels_last=false"]
TASER = ["regulariser.name=taser", "regulariser.fraction=1.0"]
DRAWN = [*TASER, "regulariser.form=paired"]
CLEAN = [*TASER, "regulariser.form=paper", "regulariser.operator=first_order"]
PAPER = [*CLEAN, "regulariser.operator=langevin", "regulariser.backend=reverse"]

ATTACK: dict[str, list[str]] = {
    "taser train": PLAIN,
    "+ channels_last": ["loop.fold=false"],
    "+ BatchNorm folded (default)": [],
}
PENALTY: dict[str, list[str]] = {
    "no penalty": [],
    "the paper's way": PAPER,
    "first order alone": [*PAPER, "regulariser.operator=first_order"],
    "first order by differences": CLEAN,
    "+ scores in pairs": DRAWN,
    "+ in the steepest direction": TASER,
    "+ a quarter of the batch (default)": ["regulariser.name=taser", "regulariser.fraction=0.25"],
    "+ every second step": [
        "regulariser.name=taser",
        "regulariser.fraction=0.25",
        "regulariser.every=2",
    ],
}


def steppers(method: str, settings: dict[str, list[str]]) -> dict[str, Stepper]:
    """The training steps of each setting."""
    return {name: stepper(WORKLOAD, method, overrides) for name, overrides in settings.items()}


def measure(repetitions: int) -> dict[str, Any]:
    """Both groups; the ratio of a timing is to the first of its group."""
    loops = {name: (plain_pgd_loop(WORKLOAD, whole), 1) for name, whole in PLAIN_LOOPS.items()}
    groups = {
        "PGD training": {**loops, **steppers("pgd", ATTACK)},
        "standard training with TASER": steppers("standard", PENALTY),
    }
    savings = [
        {"group": group, "name": name, "timing": asdict(timing)}
        for group, steps in groups.items()
        for name, timing in interleaved(steps, repetitions).items()
    ]
    return {**circumstances(), "repetitions": repetitions, "workload": WORKLOAD.name,
            "savings": savings}  # fmt: skip


def table(group: str, result: dict[str, Any]) -> str:
    """A row for each setting of a group."""
    own = [saving for saving in result["savings"] if saving["group"] == group]
    rows = [
        [s["name"], f"{1e3 * s['timing']['seconds']:.0f}", f"×{s['timing']['ratio']:.2f}",
         f"{s['timing']['ratio_low']:.2f}–{s['timing']['ratio_high']:.2f}"]
        for s in own
    ]  # fmt: skip
    return markdown(
        [group, "ms/step", f"against “{own[0]['name']}”", "range"], rows,
        f"{result['workload']}, {result['threads']} thread(s), torch {result['torch']}, medians of "
        f"{result['repetitions']} interleaved repetitions.",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    given = parser(__doc__, repetitions=5).parse_args(arguments)
    torch.set_num_threads(given.threads)
    result = measure(given.repetitions)
    groups = dict.fromkeys(saving["group"] for saving in result["savings"])
    tables = [table(group, result) for group in groups]
    write(given.out, "switches", "Which switch costs what", result, tables)
    print("\n".join(tables))


if __name__ == "__main__":
    main()
