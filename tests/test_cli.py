"""The command line as a user meets it: what works, what is refused, what the exit code says."""

from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from typer.testing import CliRunner

import taser
from taser.cli import app
from taser.cli._options import load_model_and_data
from taser.training import read_recipe, train
from taser.training._build import build_data

runner = CliRunner()


def run(*arguments: str | Path, code: int = 0) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_version_and_help() -> None:
    assert run("--version").strip() == f"taser {taser.__version__}"
    for command in ((), ("data",), ("score",), ("compare",)):
        assert "Usage" in run(*command, "--help")


def test_data_can_be_listed_and_described(tmp_path: Path) -> None:
    assert "cifar10         fetch" in run("data", "list", "--root", tmp_path)
    assert "(1, 8, 8)" in run("data", "info", "digits")
    assert "nothing to fetch" in run("data", "fetch", "digits")


def test_a_score_is_fitted_and_checked(tmp_path: Path) -> None:
    model = tmp_path / "digits.safetensors"
    run("score", "fit", "--data", "digits", "--out", model, "--steps", "20", "--width", "8")
    said = run("score", "check", model, "--examples", "64", "--out", tmp_path / "check")
    assert "best linear denoiser" in said
    assert (tmp_path / "check" / "report.html").exists()


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
    run("compare", "digits", "--jobs", "0", code=2)
    run("study", "tabel", code=2)


def test_scores_of_tables(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3))
    table = tmp_path / "t.csv"
    table.write_text("a,b,label\n" + "".join(f"{a},{b},{int(c > 0)}\n" for a, b, c in rows))
    model, options = tmp_path / "t.safetensors", ("--data", table, "--target", "label")
    run("score", "fit", *options, "--out", model, "--steps", "5")
    assert not model.with_suffix(".partial").exists()
    run("score", "check", model, *options, "--examples", "4", "--out", tmp_path / "check")
    for wrong in (tmp_path, model.with_suffix(".partial")):
        assert "ends in .safetensors" in run("score", "fit", *options, "--out", wrong, code=1)


def test_a_fit_writes_over_nothing_and_beside_nobody(tmp_path: Path) -> None:
    options = ("--steps", "2", "--width", "4")
    taken = tmp_path / "taken.safetensors"
    taken.write_text("mine")
    assert "exists" in run("score", "fit", "--out", taken, *options, code=1)
    assert taken.read_text() == "mine"
    (tmp_path / "one.partial").write_text("mine")
    said = run("score", "fit", "--out", tmp_path / "one.safetensors", *options, code=1)
    assert "one.partial should be a folder of checkpoints" in said
    with FileLock(tmp_path / "two.partial" / ".lock"):
        (tmp_path / "two.partial" / "notes.txt").write_text("mine")
        said = run("score", "fit", "--out", tmp_path / "two.safetensors", *options, code=1)
        assert "another process is fitting" in said
    said = run("score", "fit", "--out", tmp_path / "two.safetensors", *options)
    assert "(2 steps at most)" in said
    assert "of the best linear denoiser's error at t = 50" in said
    assert [path.name for path in (tmp_path / "two.partial").iterdir()] == ["notes.txt"]


def test_images_of_many_sizes_are_resized(tmp_path: Path) -> None:
    from PIL import Image

    for number in range(40):
        folder = tmp_path / "photos" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8 + number % 3, 8)).save(folder / f"{number}.png")
    assert "data.size" in run("data", "info", tmp_path / "photos", code=1)
    assert "(1, 8, 8)" in run("data", "info", tmp_path / "photos", "--size", "8")
    config = read_recipe("digits/standard", [f"data.name={tmp_path / 'photos'}", "data.size=8"])
    assert build_data(config.data).input_shape == (1, 8, 8)


@pytest.fixture(scope="module")
def run_of_another_split(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    quick = ["data.seed=1", "data.examples=64", "loop.epochs=1", "model.width=4"]
    train(read_recipe("digits/standard", [*quick, "validation.examples=16"]), out)
    return out


def test_a_runs_own_data_by_name_come_in_its_own_splits(run_of_another_split: Path) -> None:
    """By the default seed 262 of the 359 test examples would be of the training part."""
    named, _ = load_model_and_data(str(run_of_another_split), None, "digits", None, None, None)
    own, _ = load_model_and_data(str(run_of_another_split), None, None, None, None, None)
    assert named.test.hash == own.test.hash != taser.data.load("digits").test.hash


def test_data_sorted_by_class_are_checked_as_a_whole(
    run_of_another_split: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The curve over ε and both sides of `shift` hold examples of every class."""
    test = taser.data.load("digits").test
    rows = test.y.argsort(stable=True)
    x, y = test.x[rows].numpy(), test.y[rows].numpy()
    np.savez(tmp_path / "sorted.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    seen: dict[str, set[int]] = {}

    def curve(_: object, x: object, y: torch.Tensor, **__: object) -> None:  # noqa: ARG001
        seen["curve"] = set(y.tolist())

    def apart(_: object, __: object, inside: torch.Tensor, outside: dict, **___: object) -> None:
        for name, part in {"inside": inside, **outside}.items():
            matches = (torch.from_numpy(x)[None] - part.cpu()[:, None]).flatten(2).norm(dim=2)
            seen[name] = set(y[matches.argmin(1)].tolist())
        raise ValueError("seen enough")

    monkeypatch.setattr("taser.evaluation._evaluate.accuracy_curve", curve)
    monkeypatch.setattr("taser.evaluation.out_of_distribution", apart)
    options = ("--model", run_of_another_split, "--data", tmp_path / "sorted.npz")
    run("evaluate", *options, "--attacks", "noise", "--out", tmp_path / "found")
    run("shift", *options, "--severity", "1", "--out", tmp_path / "shift", code=1)
    assert set(seen) > {"curve", "inside"}
    assert all(classes == set(range(10)) for classes in seen.values()), seen
