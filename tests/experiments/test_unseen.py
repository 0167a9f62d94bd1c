"""Networks of a comparison under a threat that was not used in training."""

import sys
from pathlib import Path

import pytest

import unseen
from taser.compare import ComparisonConfig, compare

CONFIG = ComparisonConfig(
    methods=("standard",), n=40, epsilon=0.05, attacks=("fgsm",),
    variants={"off": [], "gradient": ["regulariser.name=gradient-norm"]},
    overrides=["data.examples=200", "loop.epochs=1", "validation.steps=1", "model.width=4",
               "loop.threads=1"],
)  # fmt: skip


def test_a_larger_ball_breaks_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = compare(CONFIG, tmp_path)
    command = ["unseen.py", str(tmp_path), "--epsilon", "0.3", "--attack", "fgsm"]
    monkeypatch.setattr(sys, "argv", command)
    unseen.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:4]]
    assert [row[0].strip("| ") for row in rows] == ["standard"] * 2
    off = next(run for run in results.runs if run.variant == "off")
    assert float(rows[0][2]) < 100 * off.correct("fgsm").double().mean()
    assert "[" in rows[1][3]
