"""Runs that are killed, with SIGKILL, and resumed end with the same bits.

Each run is a process of its own, forked from a server that has imported everything, so that an
import is paid for once. Two epochs of five steps, the last on a smaller batch: pgd, TASER on half
of each batch with a running centre and a weight by target loss, averaged weights, BatchNorm,
augmentation, and a line of the log every two steps, so that one of them spans the epochs.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from small_runs import small

from taser import _checkpoint as checkpoint
from taser._checkpoint import Checkpoint, latest_checkpoint
from taser.training import Config, train
from taser.training import _run as run
from taser.training._run_folder import Log, read_log

EPOCH = 5
CONTEXT = get_context("forkserver")
# Optimisers import torch._dynamo at their first use, which takes longer than a run.
CONTEXT.set_forkserver_preload(
    ["taser.training", "torch._dynamo", "torch.utils.tensorboard", "sklearn.datasets"]
)


def config(save_minutes: float = 1e9) -> Config:
    return small(
        data={"examples": 72, "augment": "crop", "padding": 1},
        objective={"name": "pgd", "steps": 1},
        regulariser={
            "name": "taser",
            "center": "running",
            "target_loss": 2.3,
            "fraction": 0.5,
        },
        schedule={"warmup": 0.1},
        loop={"epochs": 2, "batch": 16, "ema": 0.9, "save_minutes": save_minutes},
    )


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# What can fail in a run, once it has begun. Each of these patches the process that
# it is called in, which has not long to live.


def at_step(number: int) -> Callable[[int, int, str], None]:
    return lambda done, _, __: die() if done == number else None


def slowly() -> Callable[[int, int, str], None]:
    """Slow enough to be killed from outside."""
    return lambda *_: time.sleep(0.2)


def in_the_middle_of_a_file(name: str, call: int) -> None:
    """Fails when half of the file is written."""
    write, calls = checkpoint.write_atomically, iter(range(10_000))

    def half(path: Path, content: str | bytes) -> Path:
        if path.name == name and next(calls) == call:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = content.encode() if isinstance(content, str) else content
            path.with_name(f".{name}.half").write_bytes(data[: len(data) // 2])
            die()
        return write(path, content)

    checkpoint.write_atomically = run.write_atomically = half


def before_a_checkpoint_gets_its_name(call: int) -> None:
    replace, calls = os.replace, iter(range(10_000))

    def rename(source: Any, target: Any) -> None:
        if Path(source).name.startswith(".writing") and next(calls) == call:
            die()
        replace(source, target)

    os.replace = rename  # type: ignore[assignment]


def in_the_middle_of_removing_an_old_one() -> None:
    remove = shutil.rmtree

    def half(path: Any, **options: Any) -> None:
        if Path(path).name.startswith("step-") and Path(path).exists():
            next(Path(path).iterdir()).unlink()
            die()
        remove(path, **options)

    shutil.rmtree = half  # type: ignore[assignment]


def after_the_first_validation() -> None:
    """It is in the log, and in no checkpoint."""
    write = Log.write

    def last_words(log: Log, step: int, kind: str, numbers: dict[str, float]) -> None:
        write(log, step, kind, numbers)
        if kind == "validation":
            die()

    Log.write = last_words  # type: ignore[method-assign]


def after_the_checkpoint_of(step: int) -> None:
    save = run.save_checkpoint

    def last(folder: Path, number: int, content: Checkpoint) -> Path:
        path = save(folder, number, content)
        if number == step:
            die()
        return path

    run.save_checkpoint = last


Death = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def death(function: Callable[..., Any], *args: Any, **options: Any) -> Death:
    return function, args, options


def live(config: Config, out: Path, end: Death | None) -> None:
    """Train in this process, and perhaps die of it."""
    run.LINES_PER_EPOCH = 2
    report = None
    if end is not None:
        function, args, options = end
        report = function(*args, **options)
    train(config, out, report=report)


def start(config: Config, out: Path, end: Death | None = None) -> BaseProcess:
    process = CONTEXT.Process(target=live, args=(config, out, end))
    process.start()
    return process


def finish(config: Config, out: Path) -> None:
    process = start(config, out)
    process.join()
    assert process.exitcode == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupted."""
    out = tmp_path_factory.mktemp("whole")
    finish(config(), out)
    return out


def assert_alike(one: Path, two: Path) -> None:
    for name in ("last.safetensors", "best.safetensors", "log.jsonl", "model.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    results = [json.loads((out / "result.json").read_text()) for out in (one, two)]
    for result in results:
        del result["seconds"], result["folder"]
    assert results[0] == results[1]


EPOCHS_ONLY: dict[str, tuple[Death, int]] = {
    "before the first checkpoint": (death(at_step, 3), 0),
    "in the middle of an epoch": (death(at_step, EPOCH + 3), EPOCH),
    "between epochs": (death(after_the_checkpoint_of, EPOCH), EPOCH),
    "between validation and checkpoint": (death(after_the_first_validation), 0),
    "in the middle of the first checkpoint": (
        death(in_the_middle_of_a_file, "optimiser.safetensors", 0), 0,
    ),
    "in the middle of the second checkpoint": (
        death(in_the_middle_of_a_file, "state.json", 1), EPOCH,
    ),
    "before the second checkpoint has its name": (
        death(before_a_checkpoint_gets_its_name, 1), EPOCH,
    ),
    "in the middle of the best weights": (death(in_the_middle_of_a_file, "best.safetensors", 0), 0),
    "in the middle of the last weights": (
        death(in_the_middle_of_a_file, "last.safetensors", 0), 2 * EPOCH,
    ),
}  # fmt: skip

AT_EVERY_STEP: dict[str, tuple[Death, int]] = {
    "in the middle of an epoch": (death(at_step, 4), 3),  # the report comes before the saving
    "at the last step of an epoch": (death(at_step, EPOCH), EPOCH - 1),
    "between validation and checkpoint": (death(after_the_first_validation), EPOCH - 1),
    "in the middle of the third checkpoint": (
        death(in_the_middle_of_a_file, "model.safetensors", 2), 2,
    ),
    "in the middle of removing an old one": (death(in_the_middle_of_removing_an_old_one), 3),
}  # fmt: skip


def step_of(out: Path) -> int:
    found = latest_checkpoint(out / "checkpoints")
    return 0 if found is None else int(found.state["progress"]["step"])


def killed_and_resumed(config: Config, out: Path, end: Death, left: int) -> None:
    process = start(config, out, end)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (out / "result.json").exists()
    assert step_of(out) == left  # what there is to go on from
    finish(config, out)


@pytest.mark.parametrize("moment", EPOCHS_ONLY)
def test_checkpoints_at_the_end_of_epochs(tmp_path: Path, whole: Path, moment: str) -> None:
    killed_and_resumed(config(), tmp_path, *EPOCHS_ONLY[moment])
    assert_alike(tmp_path, whole)


@pytest.mark.parametrize("moment", AT_EVERY_STEP)
def test_checkpoints_inside_epochs(tmp_path: Path, whole: Path, moment: str) -> None:
    killed_and_resumed(config(save_minutes=0.0), tmp_path, *AT_EVERY_STEP[moment])
    assert_alike(tmp_path, whole)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-000000009", "step-000000010"]  # and nothing half-written


def test_killed_from_outside_again_and_again(tmp_path: Path, whole: Path) -> None:
    """Whenever it has come a little further, by no clock of its own."""
    for lines in (1, 2, 3):
        process = start(config(save_minutes=0.0), tmp_path, death(slowly))
        while process.is_alive() and len(read_log(tmp_path)) < lines:
            time.sleep(0.01)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert 0 < step_of(tmp_path) < 2 * EPOCH
    finish(config(save_minutes=0.0), tmp_path)
    assert_alike(tmp_path, whole)


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(
    tmp_path: Path, whole: Path
) -> None:
    process = start(config(save_minutes=0.0), tmp_path, death(at_step, 4))
    process.join()
    newest = tmp_path / "checkpoints" / "step-000000003" / "model.safetensors"
    content = newest.read_bytes()
    newest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert step_of(tmp_path) == 2
    finish(config(save_minutes=0.0), tmp_path)
    assert_alike(tmp_path, whole)
