"""Everything that computes, on a device that is not the CPU: see far.py."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import cases
import taser
from attacks.victims import digits, undefended
from far import FAR, far_device
from taser.attacks import Threat
from taser.cli import app
from taser.compare import ComparisonConfig
from taser.compare._comparison import run_job
from taser.compare._comparison_config import METHODS
from taser.evaluation import CHECKS, audit
from taser.training import read_recipe, train

THREAT = Threat("linf", 0.3)  # few examples are robust
SMALL = ["data.examples=40", "loop.epochs=1", "loop.batch=20", "validation.examples=20"]
ALL = ("autoattack", "spsa", "pgd", "fgsm", "noise")


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with far_device(monkeypatch):
        yield


def test_the_simulated_device_refuses_what_a_gpu_refuses() -> None:
    near, there = torch.ones(3), torch.ones(3, device=FAR)
    assert (there + 1).device == FAR
    assert (there + 1).cpu().tolist() == [2, 2, 2]
    for meeting in (lambda: near + there, lambda: near[there.long()], there.numpy):
        with pytest.raises((RuntimeError, TypeError), match="far device"):
            meeting()


@pytest.mark.parametrize("name", sorted(cases.MODELS))
def test_penalties(name: str) -> None:
    case = cases.case(name)
    values = []
    for device in ("cpu", FAR):
        penalty = taser.SteinPenalty(backend="difference")
        batch = (tensor.to(device) for tensor in (case.x, case.y, case.s))
        values.append(penalty(case.model.to(device).train(), *batch).cpu())
    torch.testing.assert_close(values[0], values[1])


def victim(device: torch.device | str) -> torch.nn.Module:
    return copy.deepcopy(undefended()).to(device)


def test_an_evaluation() -> None:
    records = [
        taser.evaluate(victim(device), *digits(40), threat=THREAT, attacks=ALL, n=6)
        for device in ("cpu", FAR)
    ]
    for name, verdicts in records[0].attacks.items():
        assert torch.equal(verdicts.correct, records[1].attacks[name].correct)


def test_an_audit() -> None:
    found = audit(
        victim(FAR), *digits(60), threat=THREAT, surrogate=victim(FAR), steps=5, restarts=1,
        queries=20,
    )  # fmt: skip
    assert [check.name for check in found.checks if check.passed is None] == []
    assert len(found.checks) == len(CHECKS)


@pytest.mark.parametrize("method", METHODS)
def test_a_run(method: str, tmp_path: Path) -> None:
    config = read_recipe(f"digits/{method}", [*SMALL, "regulariser.name=taser"])
    assert train(config, tmp_path).steps == 2


def test_a_job_of_a_comparison(tmp_path: Path) -> None:
    config = ComparisonConfig(
        methods=("standard",), overrides=[*SMALL], n=5, epsilon=0.3, attacks=("pgd",), audited=60
    )
    job = config.runs()["0-2-train-0-standard-taser"]
    assert run_job(tmp_path / "taser", job, None)["diagnostics"]["curve"]


def test_commands(tmp_path: Path) -> None:
    out, score = (
        {name: str(tmp_path / name) for name in ("run", "check", "judged", "shift")},
        str(tmp_path / "score.safetensors"),
    )
    model = ["--model", out["run"], "--epsilon", "0.3"]
    for command in (
        ["train", "--recipe", "digits/standard", "--out", out["run"], *SMALL],
        ["evaluate", *model, "--attacks", "pgd", "-n", "10", "--out", out["judged"]],
        ["score", "fit", "--steps", "3", "--width", "8", "--levels", "2", "--out", score],
        ["score", "check", score, "-n", "20", "--out", out["check"]],
        ["shift", *model, "-n", "20", "--score", score, "--out", out["shift"]],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, (command, result.output, result.exception)
