"""Certified accuracy of four smoothed classifiers, one small run."""

import json
import lzma
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import certified


def test_a_small_run_writes_a_table_figures_and_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(certified.STUDIES["digits"], sigmas=(0.25,), weights=(0.1,), seeds=2, draws=60)
    small = replace(small, radii=(0.1, 0.2))
    monkeypatch.setitem(certified.STUDIES, "digits", small)
    short = ["--override", "loop.epochs=1", "data.examples=200", "model.width=4"]
    monkeypatch.setattr(
        sys, "argv", ["certified.py", "digits", "--out", str(tmp_path), "-n", "4", *short]
    )
    certified.main()
    assert "| TASER's gain |" in (tmp_path / "table.md").read_text()
    figures = json.loads((tmp_path / "figures.json").read_text())["digits"]["0.25"]["classifiers"]
    with lzma.open(tmp_path / "records.jsonl.xz", "rt") as lines:
        records = list(map(json.loads, lines))
    assert [(r["row"], r["network"]) for r in records] == [
        (row, seed)
        for row in certified.ROWS
        for seed in ((0, 1) if row in certified.SEEDED else (0,))
    ]
    for row in certified.ROWS:
        own = [record for record in records if record["row"] == row]
        for place, radius in enumerate((0.0, *small.radii)):
            certain = [
                p == y and found >= radius
                for r in own
                for p, y, found in zip(r["prediction"], r["y"], r["radius"], strict=True)
            ]
            assert figures[row]["certified"][place][0] == pytest.approx(sum(certain) / len(certain))
            assert figures[row]["attacked"][place][0] >= sum(certain) / len(certain)
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    certified.main()  # goes on from what is finished
