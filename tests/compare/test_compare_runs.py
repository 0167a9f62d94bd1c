"""Runs that an executor computes: in order, once, and not spoilt by errors, deaths and kills."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from taser.compare._comparison import _stage
from taser.compare._executors import LocalProcesses
from taser.compare._runs import Call, Runs, run_all

PGD = {"method": "pgd", "variant": "taser"}


def work(folder: Path, job: dict[str, Any], progress: Any) -> dict[str, Any]:  # noqa: ARG001
    """A run that does what its settings say."""
    with (folder.parent / "order").open("a") as stream:
        stream.write(folder.name + "\n")
    if "until" in job:
        while not (folder.parent / job["until"]).exists():
            time.sleep(0.02)
    if "error" in job:
        raise ValueError(job["error"])
    if "exit" in job:
        os._exit(job["exit"])
    runs = Runs(folder.parent)
    before = runs.required_result(job["start"])["value"] if "start" in job else 0
    here = {"threads": torch.get_num_threads(), "gpu": os.environ.get("CUDA_VISIBLE_DEVICES")}
    return {"value": job["value"] + before, **(here if "here" in job else {})}


def run(runs: Runs, executor: Executor | None = None, **options: Any) -> None:
    with executor or ThreadPoolExecutor(1) as pool:
        run_all(runs, runs.names(), work, pool, **options)


def filled(folder: Path, n: int = 3) -> Runs:
    runs = Runs(folder)
    runs.add({f"job{i}": {"value": i, "seed": i, **PGD} for i in range(n)})
    return runs


def order(folder: Path) -> list[str]:
    return (folder / "order").read_text().split()


def test_a_run_waits_for_those_that_it_needs_and_is_done_once(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    settings = {"job0": {"value": 1, "start": "job2"}, "job1": {"value": 2, "start": "job0"},
                "job2": {"value": 3, "here": True}}  # fmt: skip
    runs.add({name: {**job, "seed": 0, **PGD} for name, job in settings.items()})
    seen: list[tuple[int, int, str]] = []
    run(runs, LocalProcesses(2), threads=1, progress=lambda *words: seen.append(words))
    assert runs.result("job2") == {"value": 3, "threads": 1, "gpu": None}
    assert [runs.required_result(name)["value"] for name in runs.names()] == [4, 6, 3]
    assert order(tmp_path) == ["job2", "job0", "job1"]
    assert seen[0] == (0, 300, "0 of 3 runs")
    assert [done for done, *_ in seen] == sorted(done for done, *_ in seen)
    run(runs)
    assert len(order(tmp_path)) == 3


def test_each_process_has_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes at a time, each waiting for the other to have begun."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    runs = Runs(tmp_path)
    settings = {"seed": 0, "here": True, "until": "both", **PGD}
    runs.add({f"job{i}": {"value": i, **settings} for i in range(2)})

    def progress(*_: object) -> None:
        if (tmp_path / "order").exists() and len(order(tmp_path)) == 2:
            (tmp_path / "both").touch()

    run(runs, LocalProcesses(2), progress=progress)
    assert {runs.required_result(name)["gpu"] for name in runs.names()} == {"2", "5"}


def test_a_run_in_another_process_is_awaited_and_not_repeated(tmp_path: Path) -> None:
    """Of a second `taser compare`, or a worker that a cluster took for dead."""
    runs = filled(tmp_path, 2)
    lock = FileLock(tmp_path / "job0" / ".lock")
    lock.acquire()

    def progress(*_: object) -> None:
        if runs.finished("job1") and lock.is_locked:
            assert not runs.finished("job0")
            (tmp_path / "job0" / "result.json").write_text('{"value": 70}')
            lock.release()

    run(runs, ThreadPoolExecutor(2), progress=progress)
    assert runs.result("job0") == {"value": 70}
    assert order(tmp_path) == ["job1"]


def test_status_shows_the_stage_and_percent_of_running_runs(tmp_path: Path) -> None:
    runs = filled(tmp_path, 2)
    seen: list[tuple[int, int, str]] = []

    def watched(folder: Path, job: dict[str, Any], progress: Any) -> dict[str, Any]:
        seen.append(runs.status(runs.names()))
        progress(1, 4, "training")
        progress(2, 4, "training")  # too soon for another note
        seen.append(runs.status(runs.names()))
        progress(3, 4, "audit")
        seen.append(runs.status(runs.names()))
        return work(folder, job, progress)

    for name in runs.names():
        Call(tmp_path / name, watched)()
    title = "PGD + TASER, seed"
    assert seen[:3] == [(0, 200, f"0 of 2 runs; {title} 0: starting"),
                        (25, 200, f"0 of 2 runs; {title} 0: training"),
                        (75, 200, f"0 of 2 runs; {title} 0: audit")]  # fmt: skip
    assert seen[4] == (125, 200, f"1 of 2 runs; {title} 1: training")
    assert runs.status(runs.names()) == (200, 200, "2 of 2 runs")


def test_the_percent_done_never_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several stages, each of which counts from zero."""
    monkeypatch.setattr("taser.compare._runs.NOTE_EVERY", -1.0)
    runs, seen = filled(tmp_path, 1), []

    def staged(folder: Path, job: dict[str, Any], progress: Any) -> dict[str, Any]:
        for stage in (0, 1):
            report = _stage(progress, stage, 2, "stage")
            for done in range(5):
                report(done, 4, "epoch")
                seen.append(runs.status(["job0"])[0])
        progress(1, 4, "a count that falls")
        seen.append(runs.status(["job0"])[0])
        return work(folder, job, progress)

    Call(tmp_path / "job0", staged)()
    assert seen == [0, 12, 25, 37, 50, 50, 62, 75, 87, 100, 100]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    runs = filled(tmp_path)
    runs.add({"job0": {"value": 0, "seed": 0, **PGD}})
    with pytest.raises(ValueError, match="other settings"):
        runs.add({"job0": {"value": 7}})


def test_a_worker_that_cannot_read_the_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cannot read .*elsewhere; use a shared"):
        Call(tmp_path / "elsewhere", work)()


def test_a_failure_is_named_and_tried_again(tmp_path: Path) -> None:
    """The later runs are done, except those that need it."""
    runs = Runs(tmp_path)
    runs.add({"job0": {"value": 0, "error": "no such data"}, "job1": {"value": 1},
              "job2": {"value": 2, "start": "job0"}})  # fmt: skip
    with pytest.raises(RuntimeError, match="2 of 3 runs failed; job0: no such data"):
        run(runs)
    assert runs.failures() == {"job0": "no such data", "job2": "this run needs job0, which failed"}
    assert runs.status(runs.names()) == (300, 300, "1 of 3 runs; 2 failed")
    (tmp_path / "job0" / "job.json").write_text(json.dumps({"value": 5}))
    run(runs)
    assert not runs.failures()
    assert runs.required_result("job2")["value"] == 7


def test_a_process_that_dies_fails_only_its_run(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add({"job0": {"value": 0, "exit": 9}, "job1": {"value": 1, "until": "job0/error.txt"}})
    with pytest.raises(RuntimeError, match="1 of 2 runs failed; job0: its process ended with exit"):
        run(runs, LocalProcesses(2))
    assert runs.finished("job1")


def test_an_error_of_any_kind_is_kept(tmp_path: Path) -> None:
    runs = filled(tmp_path, 1)

    def fails(*_: object) -> dict[str, Any]:
        raise KeyError("width")

    Call(tmp_path / "job0", fails)()
    assert runs.failures() == {"job0": "KeyError: 'width'"}


PARENT = """
import sys
from functools import partial
from pathlib import Path
from taser.compare._comparison import run_job
from taser.compare._executors import LocalProcesses
from taser.compare._runs import Runs, run_all

if __name__ == "__main__":
    with LocalProcesses(1) as executor:
        run_all(Runs(Path(sys.argv[1])), ["job0"], partial(run_job, trust_code=False), executor)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_the_processes_end_with_their_parent(how: signal.Signals, tmp_path: Path) -> None:
    """However it ends; otherwise they would run on in the background."""
    script, folder = tmp_path / "parent.py", tmp_path / "runs"
    script.write_text(
        PARENT.replace("if __name__", "import signal\nsignal.signal(signal.SIGINT, "
                       "signal.default_int_handler)\nif __name__")  # ignored below `nohup … &`
    )  # fmt: skip
    slow = {"recipe": "digits/standard", "overrides": ["loop.epochs=100000"], "choices": [],
            "method": "standard", "variant": "off", "seed": 0}  # fmt: skip
    Runs(folder).add({"job0": slow})
    with subprocess.Popen([sys.executable, script, folder], stderr=subprocess.DEVNULL) as parent:
        log = folder / "job0" / "run" / "log.jsonl"
        while not log.exists():
            assert parent.poll() is None
            time.sleep(0.05)
        parent.send_signal(how)
        parent.wait(30)
    with FileLock(folder / "job0" / ".lock", timeout=30):  # a dead process releases its lock
        assert not (folder / "job0" / "result.json").exists()
        assert not (folder / "job0" / "error.txt").exists()
