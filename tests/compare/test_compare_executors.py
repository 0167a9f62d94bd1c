"""A comparison on Dask and by submitit ends as in local processes, whoever is killed meanwhile."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from taser.compare import Results, read_comparison, read_results
from taser.compare._executors import dask_executor, slurm_executor
from taser.report._comparison_tables import main_table, search_table

pytestmark = pytest.mark.timeout(1800)
SETTINGS = {
    "methods": ["standard"], "n": 100, "epsilon": 0.1, "attacks": ["fgsm"],
    "overrides": ["data.examples=100", "loop.epochs=10", "validation.steps=1", "model.width=4",
                  "loop.threads=1"],
    "search": {"candidates": {"off": [["optimiser.rate=0.003"], ["optimiser.rate=0.01"]],
                              "taser": [["regulariser.weight=0.1"], ["regulariser.weight=0.3"]]},
               "overrides": ["loop.epochs=5"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "six.yaml"
    path.write_text(yaml.safe_dump(SETTINGS))
    assert len(read_comparison(path).runs()) == 6
    return path


def command(config: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "taser", "compare", str(config), "--out", str(out),
            "--threads", "1", *options]  # fmt: skip


@pytest.fixture(scope="module")
def local(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What two local processes find, after one was killed and then the comparison itself."""
    out = tmp_path_factory.mktemp("local")
    with subprocess.Popen(command(config, out, "--jobs", "2"), stderr=subprocess.DEVNULL) as first:
        wait_for(lambda: begun(out), first)
        first.kill()
    subprocess.run(command(config, out, "--jobs", "2"), check=True, stdout=subprocess.DEVNULL)
    return read_results(out)


def begun(out: Path) -> list[Path]:
    """The logs of the runs that are in hand, and that have a checkpoint."""
    return [home.parent for home in out.glob("runs/*/run/checkpoints")
            if any(home.iterdir()) and not (home.parents[1] / "result.json").exists()]  # fmt: skip


def wait_for(what: Callable[[], Any], process: subprocess.Popen) -> Any:
    while not (found := what()):
        assert process.poll() is None, "it ended too early"
        time.sleep(0.02)
    return found


def tables(results: Results) -> list[Any]:
    found = main_table(results.rows()), search_table(results)
    return [table and (table.headings, table.rows) for table in found]


@contextmanager
def started(arguments: list[str]) -> Iterator[subprocess.Popen]:
    """A process that does not outlive the test."""
    with subprocess.Popen(arguments, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def dask(*arguments: str) -> AbstractContextManager[subprocess.Popen]:
    return started([sys.executable, "-m", "dask", *arguments, "--no-dashboard"])


def test_on_dask_a_worker_is_killed_and_one_joins_late(
    config: Path, tmp_path: Path, local: Results
) -> None:
    file, out = tmp_path / "scheduler.json", tmp_path / "out"
    worker = ("worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-nanny")
    with ExitStack() as stack:
        scheduler = stack.enter_context(
            dask("scheduler", "--port", "0", "--scheduler-file", str(file))
        )
        address = wait_for(lambda: file.exists() and json.loads(file.read_text())["address"],
                           scheduler)  # fmt: skip
        first = stack.enter_context(dask(*worker))
        found = stack.enter_context(started(command(config, out, "--cluster", address)))
        wait_for(lambda: begun(out), found)
        first.send_signal(signal.SIGKILL)
        stack.enter_context(dask(*worker))
        stack.enter_context(dask(*worker))
        assert found.wait(1200) == 0
    assert tables(read_results(out)) == tables(local)


def test_by_submitit_a_job_is_preempted(config: Path, tmp_path: Path, local: Results) -> None:
    """Its signal is SIGUSR2; the job is queued again, and goes on from its checkpoint."""
    out = tmp_path / "out"
    slurm = command(config, out, "--slurm", "cluster=local timeout_min=30")
    with started(slurm) as found:
        wait_for(lambda: begun(out), found)
        for process in psutil.process_iter(["cmdline"]):
            if {"submitit.core._submit", str(out / "slurm")} <= set(process.info["cmdline"] or ()):
                process.send_signal(signal.SIGUSR2)
        assert found.wait(1200) == 0
    logs = "".join(path.read_text() for path in (out / "slurm").glob("*_log.*"))
    assert "Requeued job" in logs
    assert tables(read_results(out)) == tables(local)


def test_finished_runs_are_not_done_again(config: Path, local: Results) -> None:
    results = sorted(local.folder.glob("runs/*/result.json"))
    before = [path.stat().st_mtime_ns for path in results]
    done = subprocess.run(command(config, local.folder), check=True, capture_output=True, text=True)
    assert [path.stat().st_mtime_ns for path in results] == before
    assert "All 6 runs are finished" in done.stdout


@pytest.mark.parametrize(
    ("settings", "message"),
    [("partition", "settings such as"), ("cluster=local partitoin=gpu", "partitoin"),
     ("cluster=lsf", "lsf")],
)  # fmt: skip
def test_settings_that_submitit_does_not_know(settings: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        slurm_executor(settings, tmp_path)


def test_a_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in ("distributed", "submitit"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match="pip install 'distributed"):
        dask_executor("tcp://127.0.0.1:1").__enter__()
    with pytest.raises(ImportError, match="pip install 'submitit"):
        slurm_executor("", tmp_path)
