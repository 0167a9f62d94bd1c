"""The log of a run that was interrupted is that of one that was not."""

import json
from pathlib import Path

import pytest

from taser.training._run_folder import Log, read_log


def write(folder: Path, steps: range) -> None:
    log = Log(folder, steps.start)
    for step in steps:
        log.write(step + 1, "train", {"loss": 1 / (step + 1)})
    log.close()


def test_what_came_after_the_checkpoint_is_taken_out(tmp_path: Path) -> None:
    write(tmp_path / "whole", range(6))
    write(tmp_path / "killed", range(5))
    write(tmp_path / "killed", range(3, 6))  # resumed from step 3
    one, two = ((tmp_path / name / "log.jsonl").read_text() for name in ("whole", "killed"))
    assert one == two
    assert [line["step"] for line in read_log(tmp_path / "killed")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_last_line_that_was_cut_short(tmp_path: Path, cut: int) -> None:
    """One byte less is a line without its end, which is whole; more is not."""
    write(tmp_path, range(4))
    path = tmp_path / "log.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-cut])
    kept = 4 if cut == 1 else 3
    assert [line["step"] for line in read_log(tmp_path)] == list(range(1, kept + 1))
    for damaged in ("[1]", "3", '{"kind": "train"}', '{"step": "x"}'):
        path.write_text(f"{whole}{damaged}\n")
        assert len(read_log(tmp_path)) == 4
    write(tmp_path, range(kept, 4))
    assert path.read_text() == whole


def test_a_log_that_is_switched_off_writes_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path / "run", 0, enabled=False)
    log.write(1, "train", {"loss": 1.0})
    log.close()
    assert not (tmp_path / "run").exists()
    assert read_log(tmp_path / "run") == []


def test_lines(tmp_path: Path) -> None:
    log = Log(tmp_path, 0)
    log.write(3, "validation", {"clean": 0.5, "robust": 0.25})
    log.close()
    expected = {"step": 3, "kind": "validation", "clean": 0.5, "robust": 0.25}
    assert json.loads((tmp_path / "log.jsonl").read_text()) == expected
    assert list((tmp_path / "tensorboard").glob("events.out.*"))
