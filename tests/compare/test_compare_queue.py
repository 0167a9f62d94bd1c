"""Runs that several processes share, and that a crash does not spoil."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from taser.compare._comparison import _stage
from taser.compare._jobs import Runs, run_all, run_here


def double(folder: Path, job: dict[str, Any], _: object) -> dict[str, Any]:
    """Records that it ran and returns twice the number."""
    with (folder / "calls").open("a") as stream:
        stream.write("x")
    return {"value": 2 * job["value"]}


WORK = """
import json, os, sys, time
from pathlib import Path
from taser.compare._jobs import Runs, run_here

def run(home, job, progress):
    with (home.parent / "order").open("a") as stream:
        stream.write(home.name + "\\n")
    if "sleep" in job:
        time.sleep(job["sleep"])
    if "error" in job:
        raise ValueError(job["error"])
    if "exit" in job:
        os._exit(job["exit"])
    runs = Runs(home.parent)
    before = runs.required_result(job["start"])["value"] if "start" in job else 0
    return {"value": job["value"] + before, "threads": os.environ["OMP_NUM_THREADS"]}

run_here(Path(sys.argv[1]), run)
"""


def work(runs: Runs, jobs: int = 2, **options: Any) -> None:
    command = [sys.executable, "-c", WORK]
    run_all(runs, runs.names(), command, jobs=jobs, threads=1, **options)


PGD = {"method": "pgd", "variant": "taser"}


def filled(folder: Path, n: int = 3) -> Runs:
    runs = Runs(folder)
    runs.add({f"job{i}": {"value": i, "seed": i, **PGD} for i in range(n)})
    return runs


def test_each_job_is_done_once(tmp_path: Path) -> None:
    runs = filled(tmp_path)
    for name in [*runs.names(), *runs.names()]:
        run_here(tmp_path / name, double)
    assert [runs.result(name) for name in runs.names()] == [{"value": 2 * i} for i in range(3)]
    assert all((tmp_path / name / "calls").read_text() == "x" for name in runs.names())


def test_processes_do_every_job_and_a_job_waits_for_the_one_that_it_needs(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add({"job0": {"value": 1, "start": "job2"}, "job1": {"value": 2, "judged": "job0"},
              "job2": {"value": 3}})  # fmt: skip
    seen: list[tuple[int, int, str]] = []
    work(runs, progress=lambda *words: seen.append(words))
    assert [runs.result(name) for name in runs.names()] == [
        {"value": value, "threads": "1"} for value in (4, 2, 3)
    ]
    assert (tmp_path / "order").read_text().split() == ["job2", "job0", "job1"]
    assert seen[0] == (0, 300, "0 of 3 runs")
    assert [done for done, *_ in seen] == sorted(done for done, *_ in seen)
    work(runs)
    assert (tmp_path / "order").read_text().split() == ["job2", "job0", "job1"]


def test_a_locked_job_is_skipped_and_taken_when_the_lock_is_released(tmp_path: Path) -> None:
    runs = filled(tmp_path, 2)
    lock = FileLock(tmp_path / "job0" / ".lock")
    lock.acquire()
    run_here(tmp_path / "job0", double)
    assert runs.result("job0") is None

    def progress(*_: object) -> None:
        if runs.finished("job1") and lock.is_locked:
            assert not runs.finished("job0")
            lock.release()

    work(runs, progress=progress)
    assert runs.finished("job0")


def test_running_jobs_report_progress(tmp_path: Path) -> None:
    runs = filled(tmp_path, 2)
    seen: list[tuple[int, int, str]] = []

    def watched(folder: Path, job: dict[str, Any], progress: Any) -> dict[str, Any]:
        progress(1, 4, "epoch 1/4")
        progress(0, 4, "another stage")  # too soon for another note
        seen.append(runs.status(runs.names()))
        return double(folder, job, progress)

    for name in runs.names():
        run_here(tmp_path / name, watched)
    assert seen == [(25, 200, "0 of 2 runs; PGD + TASER, seed 0: 25 %"),
                    (125, 200, "1 of 2 runs; PGD + TASER, seed 1: 25 %")]  # fmt: skip
    assert runs.status(runs.names()) == (200, 200, "2 of 2 runs")


def test_the_share_of_a_run_never_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several stages, each of which counts from zero."""
    monkeypatch.setattr("taser.compare._jobs.NOTE_EVERY", -1.0)
    runs, seen = filled(tmp_path, 1), []

    def staged(folder: Path, job: dict[str, Any], progress: Any) -> dict[str, Any]:
        for stage in (0, 1):
            for done in range(5):
                _stage(progress, stage, 2)(done, 4, "epoch")
                seen.append(runs.status(["job0"])[0])
        progress(1, 4, "a count that falls")
        seen.append(runs.status(["job0"])[0])
        return double(folder, job, progress)

    run_here(tmp_path / "job0", staged)
    assert seen == [0, 12, 25, 37, 50, 50, 62, 75, 87, 100, 100]


def test_the_status_of_a_dead_process_expires(tmp_path: Path) -> None:
    runs = filled(tmp_path, 1)
    note = tmp_path / "job0" / "doing.txt"
    note.write_text("25")
    assert runs.status(["job0"])[2] == "0 of 1 runs; PGD + TASER, seed 0: 25 %"
    os.utime(note, (0, 0))
    assert runs.status(["job0"])[2] == "0 of 1 runs"


def test_other_settings_are_refused(tmp_path: Path) -> None:
    runs = filled(tmp_path)
    runs.add({"job0": {"value": 0, "seed": 0, **PGD}})
    with pytest.raises(ValueError, match="other settings"):
        runs.add({"job0": {"value": 7}})


def test_a_failure_is_named_and_tried_again(tmp_path: Path) -> None:
    """The later jobs run, except those that depend on it."""
    runs = Runs(tmp_path)
    runs.add({"job0": {"value": 0, "error": "no such data"}, "job1": {"value": 1},
              "job2": {"value": 2, "start": "job0"}})  # fmt: skip
    with pytest.raises(RuntimeError, match="2 of 3 runs failed; job0: no such data"):
        work(runs, jobs=1)
    assert runs.failures() == {"job0": "no such data", "job2": "job0, which it needs, failed"}
    assert runs.status(runs.names()) == (300, 300, "1 of 3 runs; 2 failed")
    (tmp_path / "job0" / "job.json").write_text(json.dumps({"value": 5}))
    work(runs)
    assert not runs.failures()
    assert runs.required_result("job2")["value"] == 7


def test_a_process_that_dies_is_noticed(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add({"job0": {"value": 0, "exit": 9}, "job1": {"value": 1}})
    with pytest.raises(RuntimeError, match="1 of 2 runs failed; job0: its process ended with exit"):
        work(runs)
    assert runs.finished("job1")


def test_a_killed_process_releases_its_job(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add({"job0": {"value": 1, "sleep": 600}})
    with subprocess.Popen([sys.executable, "-c", WORK, str(tmp_path / "job0")]) as worker:
        while not (tmp_path / "order").exists():
            assert worker.poll() is None
            time.sleep(0.01)
        run_here(tmp_path / "job0", double)
        assert runs.result("job0") is None  # the worker holds its lock
        worker.kill()
    run_here(tmp_path / "job0", double)
    assert runs.result("job0") == {"value": 2}


PARENT = """
import sys
from pathlib import Path
from taser.compare._comparison import CODE
from taser.compare._jobs import Runs, run_all

run_all(Runs(Path(sys.argv[1])), ["job0"], [sys.executable, "-c", CODE])
"""


def test_sigterm_stops_the_processes_too(tmp_path: Path) -> None:
    """Otherwise they would run on in the background."""
    slow = {"recipe": "digits/standard", "overrides": ["loop.epochs=100000"], "choices": [],
            "method": "standard", "variant": "off", "seed": 0}  # fmt: skip
    Runs(tmp_path).add({"job0": slow})
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)]) as parent:
        log = tmp_path / "job0" / "run" / "log.jsonl"
        while not log.exists():
            assert parent.poll() is None
            time.sleep(0.05)
        parent.terminate()
        assert parent.wait(30) == 128 + 15
    for _ in range(300):  # a dead worker releases its lock
        try:
            with FileLock(tmp_path / "job0" / ".lock", timeout=0):
                return
        except Timeout:
            time.sleep(0.1)
    pytest.fail("the worker goes on")


def test_an_error_of_any_kind_is_kept(tmp_path: Path) -> None:
    runs = filled(tmp_path, 1)

    def fails(*_: object) -> dict[str, Any]:
        raise KeyError("width")

    run_here(tmp_path / "job0", fails)
    assert runs.failures() == {"job0": "KeyError: 'width'"}
