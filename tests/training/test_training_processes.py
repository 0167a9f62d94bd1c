"""Two processes with half the batch each are one process with all of it.

Sums of float32 in another order differ by 1e-7 of their size, and gradients of the penalty by
somewhat more, since r − D cancels: 1e-5 leaves room for that alone.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import two_processes
from safetensors.torch import load_file
from small_runs import lines, same

from taser.attacks import PGD


def torchrun(*what: str) -> str:
    """What two processes print."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--local-addr=127.0.0.1"]  # a machine's own name does not resolve everywhere
    done = subprocess.run(
        [sys.executable, *command, *what], capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of one process, and of two."""
    one, two = (tmp_path_factory.mktemp(name) for name in ("one", "two"))
    torchrun(two_processes.__file__, str(two))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PGD, "_begin", two_processes.start)
        two_processes.everything(one)
    return one, two


@pytest.mark.parametrize("name", two_processes.STEPS)
def test_a_step(both: tuple[Path, Path], name: str) -> None:
    """Loss, its parts and the penalty; the gradients; the weights after the step."""
    one, two = (load_file(out / f"{name}.safetensors") for out in both)
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5)
    assert one["loss"] != 0
    assert ("penalty" in one) == ("regulariser" in two_processes.STEPS[name])


def test_a_run(both: tuple[Path, Path]) -> None:
    """Its weights, every line of its log, and the checkpoint's measured λ in them."""
    one, two = both
    torch.testing.assert_close(
        load_file(two / "trained" / "last.safetensors"),
        load_file(one / "trained" / "last.safetensors"), rtol=1e-5, atol=1e-5,
    )  # fmt: skip
    for kind, count in {"train": 4, "validation": 2}.items():
        pairs = list(zip(lines(one / "trained", kind), lines(two / "trained", kind), strict=True))
        assert len(pairs) == count
        for alone, shared in pairs:
            del alone["kind"], shared["kind"]
            assert shared == pytest.approx(alone, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["trained", "statistics"])
def test_all_processes_end_with_the_same_model(both: tuple[Path, Path], name: str) -> None:
    """Which is the one on the disk; so they validate one model, BatchNorm's statistics included."""
    _, two = both
    first, second = (load_file(two / f"{name} {rank}.safetensors") for rank in (0, 1))
    assert same(first, second)
    assert same(first, load_file(two / name / "last.safetensors"))


def test_the_command_line(tmp_path: Path) -> None:
    """Two processes of a recipe with any device train one model, and one reports it."""
    out = tmp_path / "run"
    short = ["loop.epochs=1", "validation.examples=64"]
    output = torchrun("-m", "taser", "train", "--recipe=digits/standard", f"--out={out}", *short)
    assert output.count("best of") == 1
    assert (out / "result.json").exists()


def test_the_batch_has_to_be_shared_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taser.training._build.world_size", lambda: 3)
    with pytest.raises(ValueError, match=r"loop.batch=64 is shared by 3 processes"):
        two_processes.run.train(two_processes.trained(), tmp_path)
