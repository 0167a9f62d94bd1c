"""How much is lost between training and other examples."""

import json
from pathlib import Path
from typing import Any

import pytest

from taser.compare._jobs import Queue
from taser.compare._run_results import RunResult
from taser.report._method_figures import generalisation_table
from taser.report._method_tables import Finished


def run(method: str, seed: int, *, finetuned: bool = False) -> RunResult:
    return RunResult({
        "method": method, "variant": "off", "seed": seed, "finetuned": finetuned, "chosen": [],
        "seconds_per_example": 0.0, "closer": {}, "records": [], "clean": 1.0, "robust": 0.5,
    })  # fmt: skip


def write(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def training(attacked: dict[int, float], robust: dict[int, float]) -> list[dict[str, Any]]:
    return [
        *({"step": step, "kind": "train", "attacked": share} for step, share in attacked.items()),
        *({"step": step, "kind": "validation", "robust": share} for step, share in robust.items()),
    ]


def test_the_end_of_training_counts_and_seeds_are_averaged(tmp_path: Path) -> None:
    early = {10: 0.1, 50: 0.2, 90: 0.3}
    first = training(early | {95: 0.8, 100: 0.9}, {50: 0.9, 100: 0.6})
    write(tmp_path / "0-2-train-1-pgd-off", first)
    write(tmp_path / "1-2-train-1-pgd-off", training(early | {100: 0.75}, {100: 0.5}))
    write(tmp_path / "0-3-tune-1-pgd-off", training({100: 0.5}, {100: 0.52}))
    runs = [run("pgd", 0), run("pgd", 1), run("pgd", 0, finetuned=True)]
    table = generalisation_table(Finished(Queue(tmp_path), runs))
    assert table is not None
    scratch, tuned = ([float(cell) for cell in row[1:]] for row in table.rows)
    assert scratch == pytest.approx([80, 55, 25, 2])
    assert tuned == pytest.approx([50, 52, -2, 1])


def test_nothing_is_said_of_training_without_attacks(tmp_path: Path) -> None:
    plain = {"step": 1, "kind": "train", "clean": 1.0}
    write(tmp_path / "0-2-train-0-standard-off", [plain, *training({}, {1: 0.1})])
    runs = [run("standard", 0), run("trades", 0)]  # the second has no log at all
    assert generalisation_table(Finished(Queue(tmp_path), runs)) is None
