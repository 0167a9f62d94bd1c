"""`taser audit` and `taser shift` as a user meets them: tables, files and exit codes."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

from taser.cli._evaluate_commands import audit, shift
from taser.cli._options import PlainErrors
from taser.data import load
from taser.data._dataset import subset
from taser.evaluation import undefended

app = typer.Typer(cls=PlainErrors)
app.command()(audit)
app.command()(shift)

MASKED = """
from torch import nn
from taser.models import SmallCNN

class Masked(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.network, self.scale = SmallCNN((1, 8, 8), 10, 8), scale

    def forward(self, x):
        return self.scale * self.network(x)

    def load_state_dict(self, state, **options):
        return self.network.load_state_dict(state, **options)

    def state_dict(self, **options):
        return self.network.state_dict(**options)
"""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    digits = load("digits")
    path = tmp_path_factory.mktemp("weights") / "digits.safetensors"
    save_file(undefended(digits.train.x, digits.train.y, 10, epochs=4, width=8).state_dict(), path)
    return path


@pytest.fixture
def run() -> Callable[..., str]:
    def run(*arguments: str | Path, code: int = 0) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        machine = {"--json", "--format"} & set(arguments)
        return result.stdout if machine else result.output

    return run


def test_an_honest_model_is_trusted(run: Callable[..., str], weights: Path, tmp_path: Path) -> None:
    said = run(
        "audit", "--model", "cnn", "--option", "width=8", "--weights", weights, "--data", "digits",
        "--epsilon", "0.2", "--examples", "60", "--steps", "10", "--queries", "20",
        "--no-surrogate", "--out", tmp_path,
    )  # fmt: skip
    estimate, found, *_ = said.split("\n")  # the first on stderr
    assert estimate.startswith("  0%  audit: about ")
    assert found.startswith("Robust accuracy at ℓ∞ ε=0.2: ")
    assert "Verdict: trust (with " in said
    assert "Skipped: transfer" in said
    record = json.loads((tmp_path / "results.json").read_text())
    assert record["verdict"] == "trust"
    assert record["threat"]["epsilon"] == 0.2
    page = (tmp_path / "report.html").read_text()
    assert "random noise" in page
    assert "http" not in page


def test_a_masked_model_has_exit_code_three(
    run: Callable[..., str], weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "masked.py").write_text(MASKED)
    arguments = (
        "audit", "--model", f"{tmp_path}/masked.py:Masked", "--option", "scale=1e4", "--weights",
        weights, "--epsilon", "0.2", "--examples", "60", "--steps", "5", "--queries", "10",
        "--out", tmp_path,
    )  # fmt: skip
    said = run(*arguments, code=3)
    assert "At most: a check failed" in said
    assert "Verdict: do not trust" in said
    assert "Failed: gradients exist" in said
    record = json.loads(run(*arguments, "--json", code=3))  # and nothing else there
    assert record["verdict"] == "do not trust"
    (found,) = json.loads(run(*arguments, "--format", "sarif", code=3))["runs"]
    failed = {result["ruleId"] for result in found["results"] if result["level"] == "error"}
    assert "gradients-exist" in failed
    assert failed <= {rule["id"] for rule in found["tool"]["driver"]["rules"]}
    assert found["properties"]["verdict"] == "do not trust"
    text = next(r["message"]["text"] for r in found["results"] if r["ruleId"] == "gradients-exist")
    assert text.startswith("gradients exist: ")


def test_shift_reports_skipped_corruptions_and_findings(weights: Path, tmp_path: Path) -> None:
    arguments = (
        "shift", "--model", "cnn", "--option", "width=8", "--weights", weights, "--examples", "60",
        "--other", "digits", "--epsilon", "0.2", "--out", tmp_path, "--json",
    )  # fmt: skip
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert "Skipped: saturate" in result.stderr
    assert "Detection of corrupted (severity 3) inputs: AUROC" in result.stderr
    assert result.stdout == (tmp_path / "results.json").read_text()
    assert len(json.loads(result.stdout)["out_of_distribution"]["detections"]) == 3 * 7
    assert (tmp_path / "report.html").exists()


class Given(Exception):
    """What a step of a command was given; it ends there."""


@pytest.mark.parametrize(
    ("command", "function", "count"),
    [
        ("audit", "undefended", "SURROGATE"),
        ("shift", "out_of_distribution", "REFERENCE"),
    ],
)
def test_examples_are_drawn_from_the_whole_training_part(
    command: str,
    function: str,
    count: str,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first ones of a folder of images are all of one class."""
    given = []

    def look(*arguments: Any, **options: Any) -> None:
        given.append(options.get("reference", arguments[0]))
        raise Given

    monkeypatch.setattr(f"taser.evaluation.{function}", look)
    monkeypatch.setattr(import_module("taser.cli._evaluate_commands"), count, 50)
    result = CliRunner().invoke(
        app,
        [
            command,
            "--model",
            "cnn",
            "--option",
            "width=8",
            "--weights",
            str(weights),
            "--examples",
            "40",
            "--out",
            str(tmp_path),
        ],
    )
    assert isinstance(result.exception, Given), result.output
    train = load("digits").train
    assert torch.equal(given[0], train.rows(subset(len(train), 50)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("audit", "--model", "cnn", "--option", "width"), "name=value"),
        (("audit", "--model", "cnn", "--epsilon", "8"), "did you mean 8/255"),
        (("audit", "--model", "mlp", "--data", "diabetes"), "regression"),
        (("audit", "--model", "cnn", "--examples", "30"), "at least 30"),
        (("audit", "--model", "cnn", "-n", "20"), "chance alone could explain"),
        (("shift", "--model", "mlp", "--data", "breast-cancer"), "none of the corruptions"),
    ],
)
def test_errors_are_one_line(
    run: Callable[..., str], arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    assert message in run(*arguments, "--out", tmp_path, code=1)
