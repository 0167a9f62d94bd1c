"""Checkpoints: whole or not there, and recognised when they were damaged."""

import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from taser import _checkpoint as module
from taser._checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

GROUPS = ("model", "optimiser")


def at(step: int) -> Checkpoint:
    tensors = {"w": torch.full((3, 2), float(step)), "n": torch.tensor(step)}
    return Checkpoint(
        dict.fromkeys(GROUPS, tensors), {"progress": {"step": step, "best": 0.1}, "scaler": {}}
    )


def step_of(checkpoint: Checkpoint | None) -> int:
    """The step that all parts of a checkpoint agree on."""
    assert checkpoint is not None
    step = int(checkpoint.state["progress"]["step"])
    assert checkpoint.state == at(step).state
    for group in GROUPS:
        torch.testing.assert_close(checkpoint.tensors[group], at(step).tensors[group])
    return step


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_round_trips(tmp_path: Path) -> None:
    awkward = torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    tensors = {"weights": awkward, "half": torch.ones(2).bfloat16(), "none": torch.empty(0)}
    state = {"number": 0.1 + 0.2, "nothing": None, "list": [1, 2]}
    path = save_checkpoint(tmp_path, 7, Checkpoint({"model": tensors, "empty": {}}, state))
    found = load_checkpoint(path)
    assert found.state == state
    torch.testing.assert_close(found.tensors, {"model": tensors, "empty": {}}, rtol=0, atol=0)


def test_weights_that_are_tied_are_kept(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    path = save_checkpoint(tmp_path, 1, Checkpoint({"model": model.state_dict()}, {}))
    torch.testing.assert_close(load_checkpoint(path).tensors["model"], dict(model.state_dict()))


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "none") is None
    for step in (5, 10, 100, 15_000):
        save_checkpoint(tmp_path, step, at(step))
        assert step_of(latest_checkpoint(tmp_path)) == step
    assert names(tmp_path) == ["step-000000100", "step-000015000"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, at(4))
    save_checkpoint(tmp_path, 5, at(5))
    assert names(tmp_path) == ["step-000000005"]
    assert step_of(latest_checkpoint(tmp_path)) == 5


FILES = ["model.safetensors", "optimiser.safetensors", "state.json"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("harm", ["cut", "emptied", "removed", "flipped"])
def test_a_damaged_checkpoint_is_recognised_and_the_one_before_used(
    tmp_path: Path, file: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step, at(step))
    path = tmp_path / "step-000000002" / file
    content = path.read_bytes()
    if harm == "removed":
        path.unlink()
    else:
        path.write_bytes({"cut": content[:-20], "emptied": b"", "flipped": flipped(content)}[harm])
    with pytest.raises(DamagedCheckpoint, match=r"step-000000002 is damaged"):
        load_checkpoint(path.parent)
    assert step_of(latest_checkpoint(tmp_path)) == 1
    assert "is damaged" in caplog.text
    assert "the one before it" in caplog.text


def flipped(content: bytes) -> bytes:
    """One bit of a number in the state or of a weight, so that the file still parses."""
    place = content.index(b'"step": 2') + 8 if b'"step"' in content else len(content) - 1
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_every_flipped_byte_of_the_state_is_noticed(tmp_path: Path) -> None:
    """Except for blanks between words."""
    path = save_checkpoint(tmp_path, 2, at(2)) / "state.json"
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert load_checkpoint(path.parent).state == at(2).state
        except DamagedCheckpoint:
            continue
        assert content[place : place + 1].isspace()


def test_if_all_checkpoints_are_damaged_an_error_says_so(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, at(1))
    (tmp_path / "step-000000001" / "state.json").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"no checkpoint in .* remove the folder"):
        latest_checkpoint(tmp_path)


def test_a_damaged_checkpoint_is_written_anew(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step, at(step))
    (tmp_path / "step-000000002" / "state.json").unlink()
    save_checkpoint(tmp_path, 2, at(2))
    assert step_of(latest_checkpoint(tmp_path)) == 2


@pytest.mark.parametrize("call", range(3))
def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any of its three files; and the next write clears away what the failed one left."""
    save_checkpoint(tmp_path, 1, at(1))
    write, calls = module.write_atomically, iter(range(9))

    def full(path: Path, content: str | bytes) -> Path:
        if next(calls) == call:
            raise OSError("no space left on device")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_atomically", full)
        with pytest.raises(OSError, match="no space"):
            save_checkpoint(tmp_path, 2, at(2))
    assert step_of(latest_checkpoint(tmp_path)) == 1
    save_checkpoint(tmp_path, 3, at(3))
    assert names(tmp_path) == ["step-000000001", "step-000000003"]


def test_no_pickle(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, at(1))
    assert names(path) == FILES
    json.loads((path / "state.json").read_text())
    for file in path.iterdir():
        assert not zipfile.is_zipfile(file)  # what torch.save would write
        with pytest.raises((pickle.UnpicklingError, ValueError, KeyError, EOFError)):
            pickle.loads(file.read_bytes())
