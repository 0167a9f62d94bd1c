"""How much is lost between training and other examples."""

from pathlib import Path
from typing import Any

import pytest
from test_comparison import run as some_run

from diagnostics import by_row, generalisation_table
from taser.compare import Results, RunResult


def run(
    method: str, seed: int, log: dict[str, Any] | None = None, *, finetuned: bool = False
) -> RunResult:
    made = some_run("off", 50, seed=seed, method=method)
    made.finetuned = finetuned
    made.record |= log or {}
    return made


def training(attacked: dict[int, float], robust: dict[int, float]) -> dict[str, Any]:
    return {
        "training": {"step": list(attacked), "attacked": list(attacked.values())},
        "validation": [{"step": step, "robust": share} for step, share in robust.items()],
    }


def test_the_end_of_training_counts_and_seeds_are_averaged() -> None:
    early = {10: 0.1, 50: 0.2, 90: 0.3}
    first = training(early | {95: 0.8, 100: 0.9}, {50: 0.9, 100: 0.6})
    runs = [
        run("pgd", 0, first), run("pgd", 1, training(early | {100: 0.75}, {100: 0.5})),
        run("pgd", 0, training({100: 0.5}, {100: 0.52}), finetuned=True),
    ]  # fmt: skip
    table = generalisation_table(by_row(Results(Path(), [], runs)))
    assert table is not None
    rows = [line.split("|")[2:-1] for line in table.splitlines() if line.startswith("| pgd")]
    scratch, tuned = ([float(cell) for cell in row] for row in rows)
    assert scratch == pytest.approx([80, 55, 25, 2])
    assert tuned == pytest.approx([50, 52, -2, 1])


def test_a_table_of_overfitting_needs_attacked_training() -> None:
    plain = {"training": {"step": [1], "clean": [1.0]}}
    log = training({}, {1: 0.1}) | plain
    runs = [run("standard", 0, log), run("trades", 0)]  # the second has no log at all
    assert generalisation_table(by_row(Results(Path(), [], runs))) is None
