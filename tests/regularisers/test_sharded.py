"""FSDP: by differences the gradient is that of one process; double backward is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(500)  # two starts of Python on a busy machine
def test_two_processes_have_the_gradient_of_one(tmp_path: Path) -> None:
    script = Path(__file__).with_name("sharded.py")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    done = subprocess.run(
        [sys.executable, *launcher, "--nproc-per-node=2", str(script), str(tmp_path / "found")],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
        timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found").read_text())
    assert found["alone"] < 1e-5
    assert found["attached"] < 1e-4  # a one-sided difference from the loss's f(x)
    assert "sharded by FSDP" in found["reverse"]
