"""What a reader gets: a table, a page, a command with exit codes."""

import json
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

from attacks.victims import digits, undefended
from taser.attacks import RestartedPGD, Threat
from taser.cli._evaluate_commands import evaluate as command
from taser.cli._options import PlainErrors
from taser.evaluation import Evaluation, evaluate
from taser.evaluation._evaluate import Curve
from taser.models import build
from taser.report import _evaluation_report as report

THREAT = Threat("linf", 0.1)


@pytest.fixture(scope="module")
def found() -> Evaluation:
    x, y = digits(30)
    attack = RestartedPGD(THREAT, steps=10, restarts=1)
    return evaluate(undefended(), x, y, threat=THREAT, attacks=(attack, "noise"))


def test_the_table_has_every_figure_with_n(found: Evaluation) -> None:
    table = report.table(found)
    names = [row[0] for row in table.rows]
    assert names == ["clean", "pgd", "noise", "worst case, per example"]
    assert table.rows[1][1] == f"{100 * found.accuracy('pgd'):.1f}"
    assert "n = 30" in table.caption


def test_the_page_is_whole(found: Evaluation, tmp_path: Path) -> None:
    x, _ = digits(30)
    assert found.x_adv is not None
    attacked = undefended()(found.x_adv).argmax(1)
    curve = Curve((0.0, 0.1), (1.0, 0.5), "pgd", 30)
    page = report.write(
        found, "digits", tmp_path, x=x, predictions=attacked, curve=curve
    ).read_text()
    assert page.count("data:image/png;base64") == 2
    assert "n = 30" in page
    assert found.provenance.weights in page
    kept = Evaluation.from_json((tmp_path / "evaluation.json").read_text())
    assert torch.equal(kept.robust, found.robust)


def test_nothing_broken_means_no_pictures(tmp_path: Path) -> None:
    x, y = digits(5)
    tiny = Threat("linf", 1e-6)
    calm = evaluate(undefended(), x, y, threat=tiny, attacks=("fgsm",))
    page = report.write(calm, "calm", tmp_path, x=x, predictions=y).read_text()
    assert "data:image" not in page


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(cls=PlainErrors, pretty_exceptions_enable=False)
    app.command()(command)
    app.command("other")(lambda: None)  # with one command alone typer would drop its name
    return app


def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_file(build("mlp", classes=10, shape=(1, 8, 8)).state_dict(), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def run(app: typer.Typer, *arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_the_command_says_writes_and_exits(app: typer.Typer, tmp_path: Path) -> None:
    common = ("--model", "mlp", "--weights", weights(tmp_path), "--data", "digits", "--epsilon",
              "0.1", "--n", "30", "--attacks", "fgsm,noise", "--out", tmp_path / "out")  # fmt: skip
    assert "worst case, per example" in run(app, *common)
    assert (tmp_path / "out" / "report.html").exists()
    printed = CliRunner().invoke(app, ["evaluate", *map(str, common), "--json"])
    assert json.loads(printed.stdout)["n"] == 30
    assert "worst case, per example" in printed.stderr
    run(app, *common, "--at-least", "0")
    run(app, *common, "--at-least", "100", code=3)
    assert "other attacks" in run(app, *common, "--attacks", "fgsm", code=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epsilon", "8"), "8/255"),
        (("--attacks", "pdg"), "did you mean 'pgd'?"),
    ],
)
def test_errors_are_one_line(
    app: typer.Typer, arguments: tuple, message: str, tmp_path: Path
) -> None:
    said = run(app, "--model", "mlp", "--out", tmp_path, *arguments, code=1)
    assert message in said
    assert "Traceback" not in said
