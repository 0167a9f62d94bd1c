"""A queue that several workers share, and that a crash does not spoil."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from taser.compare._jobs import NotReady, Queue, run_workers


def double(folder: Path, job: dict[str, Any], _: object) -> dict[str, Any]:
    """Writes down that it ran, and gives twice the number."""
    with (folder / "calls").open("a") as stream:
        stream.write("x")
    return {"value": 2 * job["value"]}


def filled(folder: Path, n: int = 3) -> Queue:
    queue = Queue(folder)
    queue.add({f"job{i}": {"value": i} for i in range(n)})
    return queue


def test_each_job_is_done_once(tmp_path: Path) -> None:
    queue = filled(tmp_path)
    queue.work(double, queue.names())
    queue.work(double, queue.names())
    assert [queue.result(name) for name in queue.names()] == [{"value": 2 * i} for i in range(3)]
    assert all((tmp_path / name / "calls").read_text() == "x" for name in queue.names())


def test_a_job_that_had_to_wait_comes_before_later_ones(tmp_path: Path) -> None:
    queue = filled(tmp_path, 4)
    order: list[str] = []

    def work(folder: Path, job: dict[str, Any], _: object) -> dict[str, Any]:
        if folder.name == "job0" and not queue.finished("job1"):
            raise NotReady
        order.append(folder.name)
        return job

    queue.work(work, queue.names())
    assert order == ["job1", "job0", "job2", "job3"]


def test_a_job_in_other_hands_is_left_alone(tmp_path: Path) -> None:
    queue = filled(tmp_path)
    with FileLock(tmp_path / "job1" / ".lock"):
        queue.work(double, queue.names())
    assert queue.result("job1") is None
    assert queue.result("job2") == {"value": 4}


def test_what_is_in_hand_can_be_watched(tmp_path: Path) -> None:
    queue = filled(tmp_path, 2)
    seen: list[tuple[int, int, str]] = []

    def watched(folder: Path, job: dict[str, Any], progress: Any) -> dict[str, Any]:
        progress(1, 4, "epoch 1/4")
        progress(2, 4, "epoch 2/4")  # too soon for another note
        seen.append(queue.status(queue.names()))
        return double(folder, job, progress)

    told: list[str] = []
    queue.work(watched, queue.names(), lambda *said: told.append(said[2]))
    assert seen == [
        (0, 2, "0 of 2 runs, job0 25%"),
        (1, 2, "1 of 2 runs, job1 25%"),
    ]
    assert told == ["epoch 1/4", "epoch 2/4"] * 2
    assert queue.status(queue.names()) == (2, 2, "2 of 2 runs")


def test_the_note_of_a_worker_that_died_is_not_believed_for_long(tmp_path: Path) -> None:
    queue = filled(tmp_path, 1)
    note = tmp_path / "job0" / "doing.txt"
    note.write_text("25% epoch 1/4\n")
    assert queue.note("job0") == "25% epoch 1/4"
    os.utime(note, (0, 0))
    assert queue.note("job0") is None


def test_failures_are_counted_while_the_others_run(tmp_path: Path) -> None:
    queue = filled(tmp_path, 2)

    def fails(*_: object) -> dict[str, Any]:
        raise ValueError("no such data")

    queue.work(fails, ["job0"])
    assert queue.status(queue.names()) == (0, 2, "0 of 2 runs, 1 failed")


def test_other_settings_are_refused(tmp_path: Path) -> None:
    queue = filled(tmp_path)
    queue.add({"job0": {"value": 0}})
    with pytest.raises(ValueError, match="other settings"):
        queue.add({"job0": {"value": 7}})


def test_a_failure_is_kept_and_tried_again(tmp_path: Path) -> None:
    queue = filled(tmp_path, 1)

    def fails(*_: object) -> dict[str, Any]:
        raise ValueError("no such data")

    queue.work(fails, queue.names())
    assert queue.failures() == {"job0": "no such data\n"}
    queue.work(double, queue.names())
    assert not queue.failures()
    assert queue.result("job0") == {"value": 0}


def test_a_job_waits_for_the_one_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taser.compare._jobs.POLL", 0.0)
    queue = filled(tmp_path, 2)

    def do(folder: Path, job: dict[str, Any], progress: object) -> dict[str, Any]:
        if folder.name == "job0" and queue.result("job1") is None:
            raise NotReady("job1 first")
        return double(folder, job, progress)

    queue.work(do, queue.names())
    assert queue.result("job0") == {"value": 0}


def test_a_job_waits_for_one_whose_worker_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it needs is in other hands first, and then in nobody's: it does that too."""
    queue = filled(tmp_path, 2)
    hands = ExitStack()
    hands.enter_context(FileLock(tmp_path / "job1" / ".lock"))
    monkeypatch.setattr("taser.compare._jobs.time.sleep", lambda _: hands.close())

    def do(folder: Path, job: dict[str, Any], progress: object) -> dict[str, Any]:
        if folder.name == "job0" and queue.result("job1") is None:
            raise NotReady("job1 first")
        return double(folder, job, progress)

    queue.work(do, queue.names())
    assert [queue.result(name) for name in queue.names()] == [{"value": 0}, {"value": 2}]


def test_a_failure_of_yesterday_spoils_nothing_today(tmp_path: Path) -> None:
    """job0 needs job1, which failed then and does not now."""
    queue = filled(tmp_path, 2)
    (tmp_path / "job1" / "error.txt").write_text("no memory")

    def do(folder: Path, job: dict[str, Any], progress: object) -> dict[str, Any]:
        if folder.name == "job0" and queue.result("job1") is None:
            if "job1" in queue.failures():
                raise RuntimeError("job1, which it needs, failed")
            raise NotReady("job1 first")
        return double(folder, job, progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taser.compare._jobs.POLL", 0.0)
        queue.work(do, queue.names())
    assert not queue.failures()
    assert queue.result("job0") == {"value": 0}


def test_a_worker_that_dies_is_noticed(tmp_path: Path) -> None:
    queue = filled(tmp_path, 1)
    with pytest.raises(RuntimeError, match="1 of 1 runs are not finished"):
        run_workers(["--version"], queue, 1, 1, queue.names())  # which does no job


SLEEPS = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from taser.compare._jobs import Queue

def slow(home, job, progress):
    (home / "begun").touch()
    time.sleep(600)

Queue(Path(sys.argv[1])).work(slow, ["job0"])
"""


def test_a_killed_worker_lets_go_of_its_job(tmp_path: Path) -> None:
    queue = filled(tmp_path, 1)
    # A new process and no fork, in whose child a lock of another thread stays locked for ever.
    with subprocess.Popen([sys.executable, "-c", SLEEPS, str(tmp_path)]) as worker:
        while not (tmp_path / "job0" / "begun").exists():
            assert worker.poll() is None
            time.sleep(0.01)
        queue.work(double, queue.names())
        assert queue.result("job0") is None  # it is in the worker's hands
        worker.kill()
    queue.work(double, queue.names())
    assert queue.result("job0") == {"value": 0}


PARENT = """
import sys
from contextlib import ExitStack
from pathlib import Path
from taser.compare._jobs import Queue
from taser.compare._jobs import run_workers

print("ready", flush=True)
run_workers(["compare", sys.argv[1], "--join"], Queue(Path(sys.argv[1]) / "runs"), 1, 1, ["job0"])
"""


def test_sigterm_stops_the_workers_too(tmp_path: Path) -> None:
    """They would go on for hours, out of sight."""
    slow = {"recipe": "digits/standard", "overrides": ["loop.epochs=100000"], "choices": [],
            "method": "standard", "variant": "off", "seed": 0}  # fmt: skip
    Queue(tmp_path / "runs").add({"job0": slow})
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)]) as parent:
        log = tmp_path / "runs" / "job0" / "run" / "log.jsonl"
        while not log.exists():
            assert parent.poll() is None
            time.sleep(0.05)
        parent.terminate()
        assert parent.wait(30) == 128 + 15
    for _ in range(300):  # the worker lets go of its job once it is gone
        try:
            with FileLock(tmp_path / "runs" / "job0" / ".lock", timeout=0):
                return
        except Timeout:
            time.sleep(0.1)
    pytest.fail("the worker goes on")


def test_an_error_that_nobody_foresaw_does_not_stop_the_jobs_behind(tmp_path: Path) -> None:
    queue = filled(tmp_path)

    def work(folder: Path, job: dict[str, Any], _: object) -> dict[str, Any]:
        if folder.name == "job0":
            raise KeyError("width")
        return job

    queue.work(work, queue.names())
    assert queue.failures() == {"job0": "KeyError: 'width'\n"}
    assert queue.finished("job2")
