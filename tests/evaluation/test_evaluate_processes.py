"""Any number of processes gives one record, also after one of them was killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import taser
from taser.evaluation._attack_loop import share

pytestmark = pytest.mark.timeout(500)  # three starts of Python on a busy machine
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
NETWORK = """
import torch
from torch import nn


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 10))
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training on digits, so that some examples are right."""
    folder = tmp_path_factory.mktemp("network")
    (folder / "net.py").write_text(NETWORK)
    scope: dict[str, Any] = {}
    exec(NETWORK, scope)
    model, digits = scope["network"](), taser.data.load("digits")
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(30):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(digits.train.x), digits.train.y)
        loss.backward()
        optimiser.step()
    torch.save(model.state_dict(), folder / "net.pt")
    return folder


def start(network: Path, out: Path, processes: int) -> subprocess.Popen:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
                f"--nproc-per-node={processes}"] if processes > 1 else []  # fmt: skip
    command = [
        "-m", "taser", "evaluate", "--model", f"{network / 'net.py'}:network", "--weights",
        str(network / "net.pt"), "--data", "digits", "--epsilon", "0.05", "-n", "60", "--batch",
        "10", "--attacks", "pgd,square", "--no-curve", "--out", str(out),
    ]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, *launcher, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=ENVIRONMENT,
    )  # fmt: skip


def record(out: Path) -> dict[str, Any]:
    found = json.loads((out / "evaluation.json").read_text())
    for attack in found["attacks"].values():
        attack.pop("seconds")
    return found


def finished(network: Path, out: Path, processes: int) -> tuple[dict[str, Any], str]:
    process = start(network, out, processes)
    output, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    return record(out), output


@pytest.fixture(scope="module")
def alone(network: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return finished(network, tmp_path_factory.mktemp("alone"), 1)[0]


@pytest.mark.parametrize("processes", [3])
def test_the_record_is_that_of_one_process(
    network: Path, alone: dict[str, Any], tmp_path: Path, processes: int
) -> None:
    assert 0 < alone["robust_accuracy"] < alone["clean_accuracy"]
    found, output = finished(network, tmp_path, processes)
    assert found == alone
    assert output.count("Report: ") == 1


def test_a_killed_process_ends_the_others_and_another_number_goes_on(
    network: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    process = start(network, tmp_path, 3)
    batches = tmp_path / "batches"
    while len(list(batches.glob("*.safetensors"))) < 3 and process.poll() is None:
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    _, errors = process.communicate(timeout=400)
    assert process.returncode != 0
    assert "Signal 9" in errors
    assert not (tmp_path / "evaluation.json").exists()
    assert finished(network, tmp_path, 2)[0] == alone


def test_each_piece_is_computed_once_and_read_by_the_others(tmp_path: Path) -> None:
    done: dict[int, str] = {}

    def work(name: str) -> Any:
        def compute(i: int) -> str:
            done[i] = name
            return name

        return compute

    first = share(4, tmp_path, done.get, work("first"))
    assert next(first) == (0, "first")
    second = dict(share(4, tmp_path, done.get, work("second")))
    assert second == {0: "first", 1: "second", 2: "second", 3: "second"}
    assert dict(first) == {1: "second", 2: "second", 3: "second"}
