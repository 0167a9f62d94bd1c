"""Certified accuracy of four smoothed classifiers, one small run."""

import json
import lzma
import sys
from pathlib import Path

import pytest

import certified


def test_a_small_run_writes_a_table_figures_and_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["digits", "--out", str(tmp_path), "-n", "4", "--draws", "50", "--weights", "0.1"]
    short = ["--override", "loop.epochs=1", "data.examples=200", "model.width=4"]
    monkeypatch.setattr(sys, "argv", ["certified.py", *given, *short])
    certified.main()
    assert "plain + denoiser" in (tmp_path / "table.md").read_text()
    figures = json.loads((tmp_path / "figures.json").read_text())
    with lzma.open(tmp_path / "records.jsonl.xz", "rt") as lines:
        records = {record["row"]: record for record in map(json.loads, lines)}
    assert list(records) == list(certified.ROWS)
    for row, found in records.items():
        right = [p == y for p, y in zip(found["prediction"], found["y"], strict=True)]
        for radius, entry in zip(
            figures["radii"], figures["digits"][row]["certified"], strict=True
        ):
            certain = [r and found["radius"][i] >= radius for i, r in enumerate(right)]
            assert entry[0] == pytest.approx(sum(certain) / 4)
    certified.main()  # goes on from what is finished
