"""The picture over λ, from records and from rows."""

import shutil
from pathlib import Path

import pytest

import frontier
from taser.compare import read_results

CURVES = Path(__file__).parents[2] / "results" / "curves-fashion"


def test_a_picture_of_records(tmp_path: Path) -> None:
    shutil.copyfile(CURVES / "records.jsonl.xz", tmp_path / "records.jsonl.xz")
    frontier.main([str(tmp_path)])
    assert (tmp_path / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_curves_are_in_the_order_of_lambda() -> None:
    rows = read_results(CURVES).rows()
    curves = frontier.families(rows[::-1])
    assert set(curves) == {"taser", "gradient"}
    for curve in curves.values():
        weights = [float(row.variant.split("λ=")[1]) for row in curve]
        assert weights == sorted(weights)
        assert len(weights) > 2
    with pytest.raises(SystemExit, match="no variant"):
        frontier.draw([row for row in rows if row.variant == "off"])
