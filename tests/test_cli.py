"""The command line as a user meets it: what works, what is refused, what the exit code says."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import taser
from taser.cli import app

runner = CliRunner()


def run(*arguments: str | Path, code: int = 0) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_version_and_help() -> None:
    assert run("--version").strip() == f"taser {taser.__version__}"
    for command in ((), ("data",), ("score",), ("study",), ("study", "toy1d")):
        assert "Usage" in run(*command, "--help")


@pytest.mark.parametrize("study", ["toy1d", "manifold2d"])
def test_studies_say_what_they_found_and_write_a_page(study: str, tmp_path: Path) -> None:
    result = runner.invoke(app, ["study", study, "--quick", "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    assert "TASER" in result.stderr
    assert result.stdout == (tmp_path / "results.json").read_text()
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert {"results.json", "table.md"} <= {path.name for path in tmp_path.iterdir()}


def test_data_can_be_listed_and_looked_at(tmp_path: Path) -> None:
    assert "cifar10         fetch" in run("data", "list", "--root", tmp_path)
    assert "(1, 8, 8)" in run("data", "info", "digits")
    assert "nothing to fetch" in run("data", "fetch", "digits")


def test_a_score_is_fitted_checked_and_cached(tmp_path: Path) -> None:
    model = tmp_path / "digits.safetensors"
    run("score", "fit", "--data", "digits", "--out", model, "--steps", "20", "--width", "8")
    said = run("score", "check", model, "--examples", "64", "--out", tmp_path / "check")
    assert "best linear denoiser" in said
    assert (tmp_path / "check" / "report.html").exists()
    said = run("score", "cache", model, "--out", tmp_path / "scores")
    assert "1,295 examples" in said
    assert "differ from scores asked again" in said
    assert (tmp_path / "scores" / "manifest.json").exists()


def test_a_score_of_ones_own_is_checked_and_trained_with(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import taser\n\n"
        "def score():\n"
        "    return taser.scores.from_edm(\n"
        "        taser.scores.pretrained('digits'), 0.1, coordinates='[0,1]')\n"
    )
    said = run("score", "check", f"{own}:score", "--examples", "64", "--out", tmp_path / "check")
    assert "| 50 | 0.088 |" in said
    settings = ("data.examples=100", "loop.epochs=1", "validation.examples=20", "model.width=4")
    for name, score in (("own", f"{own}:score"), ("shipped", "auto")):
        run(
            "train", "--recipe", "digits/standard", "--taser", "--out", tmp_path / name,
            f"regulariser.score={score}", *settings,
        )  # fmt: skip
    one, other = (
        (tmp_path / name / "last.safetensors").read_bytes() for name in ("own", "shipped")
    )
    assert one == other


def test_the_score_of_plane_data_is_drawn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    np.savez(tmp_path / "plane.npz", x=x, y=(x[:, 0] > 0).astype(int))
    model = tmp_path / "plane.safetensors"
    data = ("--data", tmp_path / "plane.npz")
    run("score", "fit", *data, "--out", model, "--steps", "20", "--width", "16")
    run("score", "check", model, *data, "--out", tmp_path / "check")
    assert "over the plane" in (tmp_path / "check" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data", "info", "digitz"), "did you mean 'digits'"),
        (("data", "info", "nowhere.csv"), "no file or folder"),
        (("score", "check", "absent.safetensors"), "absent.safetensors"),
    ],
)
def test_errors_are_one_line_and_exit_code_one(arguments: tuple, message: str) -> None:
    said = run(*arguments, code=1)
    assert message in said
    assert "Traceback" not in said


def test_debug_shows_the_traceback() -> None:
    result = runner.invoke(app, ["--debug", "data", "info", "digitz"])
    assert isinstance(result.exception, ValueError)


def test_wrong_usage_has_exit_code_two() -> None:
    run("study", "toy1d", "--seeds", "0", code=2)
    run("study", "toy9d", code=2)
