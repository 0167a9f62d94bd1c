"""The log of a run that was interrupted is that of one that was not."""

import json
from pathlib import Path

import pytest
from small_runs import MLP, small
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from taser.cli._options import track_numbers
from taser.training import train
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


def test_tensorboard_has_the_same_numbers(tmp_path: Path) -> None:
    """What a killed run wrote after its checkpoint is purged there too."""
    for steps in (range(5), range(3, 6)):
        log = Log(tmp_path, steps.start, track="tensorboard")
        for step in steps:
            log.write(step + 1, "train", {"loss": 1 / (step + 1)})
        log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    found = {event.step: event.value for event in events.Scalars("train/loss")}
    assert found == pytest.approx({step: 1 / step for step in range(1, 7)})


def test_loop_track_names_the_tracker(tmp_path: Path) -> None:
    config = small(model=MLP, loop={"track": "tensorboard"})
    train(config, tmp_path)
    assert list((tmp_path / "tensorboard").glob("events.out.*"))
    train(small(model=MLP), tmp_path)  # which tracker it was changes no weight
    with pytest.raises(ValueError, match=r"loop.track should be one of .* mean 'wandb'"):
        small(loop={"track": "wandbb"})


def test_a_tracker_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taser.training._run_folder.get_available_trackers", list)
    with pytest.raises(ImportError, match=r"the tracker mlflow needs a package that is missing"):
        Log(tmp_path, 0, track="mlflow")


def test_figures_of_a_report_are_tracked(tmp_path: Path) -> None:
    track_numbers(None, tmp_path / "none", {"evaluate/clean": 0.5})
    assert not (tmp_path / "none").exists()
    track_numbers("tensorboard", tmp_path, {"evaluate/clean": 0.5})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.value for event in events.Scalars("evaluate/clean")] == [0.5]
