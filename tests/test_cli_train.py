"""`taser train`, `finetune`, `evaluate`, and `compare`, as a user types them."""

import json
from pathlib import Path

import numpy as np
import pytest

from taser.compare import ComparisonConfig
from taser.data import load
from taser.evaluation._record import predictions
from taser.training import load_trained, read_recipe
from taser.training._run_folder import read_log
from test_cli import app, run, runner

SMALL = (
    "loop.epochs=1", "data.examples=200", "loop.batch=64", "model.width=4", "validation.steps=1",
    "validation.examples=32", "objective.steps=1", "loop.threads=1",
)  # fmt: skip


def test_recipes_are_listed() -> None:
    said = run("recipes")
    for name in ("paper/trades-awp", "digits/pgd", "cifar10/mart", "finetune/taser"):
        assert name in said


def test_a_run_is_trained_evaluated_and_fine_tuned(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    said = run("train", "--recipe", "digits/pgd", "--taser", "--out", folder, *SMALL)
    assert "best of 4 steps" in said
    assert "name: taser" in (folder / "config.yaml").read_text()
    quick = ("--epsilon", "0.1", "--n", "20", "--attacks", "fgsm", "--no-curve")
    said = run("evaluate", "--model", folder, *quick, "--out", tmp_path / "evaluated")
    assert "n = 20" in said
    assert (tmp_path / "evaluated" / "report.html").exists()
    said = run("evaluate", "--model", folder, *quick, "--at-least", "100",
               "--out", tmp_path / "strict", code=3)  # fmt: skip
    run(
        "finetune", "--model", "cnn", "--weights", folder / "best.safetensors", "--out",
        tmp_path / "tuned", "data.name=digits", "data.augment=none", "model.activation=silu",
        *SMALL,
    )  # fmt: skip
    tuned = read_recipe(tmp_path / "tuned" / "config.yaml")
    assert tuned.model.weights == str(folder / "best.safetensors")
    assert (tuned.teacher.weight, tuned.regulariser.name) == (1.0, "taser")
    assert read_log(tmp_path / "tuned")[0]["teacher"] > 0


def test_a_run_is_evaluated_on_its_own_test_split(tmp_path: Path) -> None:
    """With another seed of the split, most of the usual test digits were trained on."""
    run("train", "--out", tmp_path / "run", *SMALL, "data.seed=1")
    quick = ("--epsilon", "0.1", "-n", "20", "--attacks", "fgsm", "--no-curve", "--json")
    hashes = []
    for data in ((), ("--data", "digits")):
        out = ("--out", tmp_path / f"evaluated{len(data)}")
        arguments = ("evaluate", "--model", tmp_path / "run", *quick, *data, *out)
        result = runner.invoke(app, list(map(str, arguments)))
        hashes.append(json.loads(result.stdout)["provenance"]["data"])
    assert hashes[0] == hashes[1]
    assert load("digits", seed=1).test.hash != load("digits").test.hash


def test_classes_of_other_data_are_those_that_the_run_was_trained_on(tmp_path: Path) -> None:
    """A file without fours counts its nine classes from 0 to 8; the network still has ten."""
    run("train", "--out", tmp_path / "run", *SMALL, "loop.epochs=8", "model.width=8")
    test = load("digits").test
    kept = test.y != 4
    parts = {f"{name}{end}": tensor[kept].numpy() for end in ("_train", "_test")
             for name, tensor in (("x", test.x), ("y", test.y))}  # fmt: skip
    np.savez(tmp_path / "no4.npz", **parts)
    np.savez(tmp_path / "names.npz", **{k: v + 20 if k[0] == "y" else v for k, v in parts.items()})
    quick = ("--epsilon", "0.1", "-n", "400", "--attacks", "fgsm", "--no-curve", "--json")
    arguments = [
        "evaluate",
        "--model",
        tmp_path / "run",
        *quick,
        "--out",
        tmp_path / "found",
        "--data",
    ]
    found = runner.invoke(app, [*map(str, arguments), str(tmp_path / "no4.npz")])
    model = load_trained(tmp_path / "run")
    right = (predictions(model, test.x[kept]) == test.y[kept]).float().mean()
    assert json.loads(found.stdout)["clean_accuracy"] == pytest.approx(float(right))
    assert right > 0.6
    strange = run(*arguments[:-1], "--data", tmp_path / "names.npz", code=1)
    assert "has a class '20', and the model was trained on others" in strange


def test_other_weights_of_a_run_are_evaluated(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run("train", "--out", folder, *SMALL, "loop.epochs=2")
    quick = ("--epsilon", "0.1", "-n", "20", "--attacks", "fgsm", "--no-curve", "--json")
    (folder / "best.safetensors").write_bytes(b"never read")
    arguments = ("evaluate", "--model", folder, "--weights", folder / "last.safetensors", *quick)
    result = runner.invoke(app, [*map(str, arguments), "--out", str(tmp_path / "last")])
    assert json.loads(result.stdout)["n"] == 20
    wrong = ("evaluate", "--model", folder, "--weights", folder / "lats.safetensors", *quick)
    assert "has no weights" in run(*wrong, code=1)
    assert "takes no options" in run("audit", "--model", folder, "--option", "width=2", code=1)


def test_the_suggested_command_is_of_the_same_threat(tmp_path: Path) -> None:
    said = run("train", "--out", tmp_path / "l2", *SMALL, "objective.norm=l2",
               "objective.epsilon=8/255")  # fmt: skip
    assert f"taser evaluate --model {tmp_path / 'l2'} --examples 200" in said
    said = run("evaluate", "--model", tmp_path / "l2", "--n", "10", "--attacks", "fgsm",
               "--no-curve", "--out", tmp_path / "e")  # fmt: skip
    assert "Threat: ℓ2 ε=8/255, with which the run was trained" in said
    said = run("train", "--recipe", "tables/diabetes", "--out", tmp_path / "t", "loop.epochs=1")
    assert "mean squared error" in said
    assert "taser evaluate" in said


def test_a_finished_run_is_not_done_again(tmp_path: Path) -> None:
    def result() -> list[str]:
        lines = run("train", "--out", tmp_path, *SMALL).splitlines()
        return [line for line in lines if "%  training" not in line]  # its progress

    first = result()
    written = (tmp_path / "last.safetensors").read_bytes()
    assert result() == first
    assert (tmp_path / "last.safetensors").read_bytes() == written


def test_a_dry_run_trains_nothing(tmp_path: Path) -> None:
    said = run("train", "--recipe", "digits/mart-awp", "--dry-run", "--out", tmp_path / "x", *SMALL)
    assert "awp: true" in said
    assert "parameters · 4 steps · about" in said
    assert not (tmp_path / "x").exists()


WRONG = [
    (("--recipe", "digits/pdg"), "did you mean 'digits/pgd'"),
    (("loop.epoch=3",), "did you mean 'epochs'"),
    (("loop.epochs=many",), "whole number"),
    (("epochs=3",), "loop.epochs"),
    (("objective.name=trade",), "did you mean 'trades'"),
    (("--recipe", "tables/diabetes", "objective.name=mart"), "for regression use pgd"),
    (("objective.epsilon=8",), "8/255"),
    (("model.name=resnet19",), "resnet18"),
    (("data.name=cifar11",), "cifar10"),
    (("--recipe", "digits/standard", "data.name=breast-cancer", "--taser"), "images"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[m for _, m in WRONG])
def test_wrong_input_is_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    said = run("train", "--out", tmp_path / "run", *arguments, code=1)
    assert message in said
    assert "\n" not in said.strip()


def test_another_configuration_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    run("train", "--out", tmp_path, *SMALL)
    said = run("train", "--out", tmp_path, *SMALL, "optimiser.rate=0.5", code=1)
    assert "optimiser.rate was 0.003, is 0.5" in said


def test_a_comparison_and_its_report(tmp_path: Path) -> None:
    recipe, out = tmp_path / "table.yaml", tmp_path / "table"
    recipe.write_text(
        "recipe: digits\nmethods: [standard]\n"
        'variants: {"off": [], taser: [regulariser.name=taser]}\n'
        f"overrides: [{', '.join(SMALL)}]\nn: 10\nepsilon: 0.1\nattacks: [fgsm]\n"
    )
    said = run("compare", recipe, "--out", out, "--jobs", "2")
    assert "| Standard | + TASER |" in said
    (out / "report.html").unlink()
    assert "| Standard | + TASER |" in run("compare", out, "--report")
    assert (out / "report.html").exists()
    answer = runner.invoke(app, ["compare", str(out), "--report", "--json"])
    assert answer.stdout == (out / "figures.json").read_text()
    assert "there is no comparison in" in run("compare", tmp_path, "--report", code=1)


def test_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `make demo` runs, on less: one method, a short training, a quick attack."""
    config = ComparisonConfig(
        methods=("standard",), n=10, epsilon=0.1, attacks=("fgsm", "noise"), overrides=[*SMALL],
        variants={"off": [], "taser": ["regulariser.name=taser"]},
    )  # fmt: skip
    monkeypatch.setattr("taser.compare._comparison.read_comparison", lambda _, **__: config)
    said = run("demo", "--jobs", "1", "--out", tmp_path)
    assert "| Standard | + TASER |" in said
    assert (tmp_path / "report.html").exists()


def test_the_options_of_an_evaluation_arrive(tmp_path: Path) -> None:
    run("train", "--out", tmp_path / "run", *SMALL)
    words = (
        "evaluate", "--model", tmp_path / "run", "--norm", "l2", "--epsilon", "0.5", "--unbounded",
        "--first", "-n", "10", "--batch", "4", "--seed", "3", "--threads", "1",
        "--attacks", "fgsm", "--no-curve", "--out", tmp_path / "found", "--json",
    )  # fmt: skip
    found = json.loads(runner.invoke(app, list(map(str, words))).stdout)
    assert found["threat"] == {"norm": "l2", "epsilon": 0.5, "low": None, "high": None}
    assert (found["provenance"]["seed"], found["provenance"]["batch_size"]) == (3, 4)
    assert sorted(found["index"]) == list(range(10))


def test_a_runs_folder_is_all_that_fine_tuning_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its own data, for a third of its epochs and rate, in a folder of its name."""
    monkeypatch.chdir(tmp_path)
    run("train", "--recipe", "digits/standard", "--out", "plain", *SMALL, "loop.epochs=3")
    assert "best of 4 steps" in run("finetune", "--model", "plain")
    before, after = (read_recipe(tmp_path / folder / "config.yaml")
                     for folder in ("plain", "out/finetune/plain"))  # fmt: skip
    assert after.model.weights == "plain/best.safetensors"
    assert after.loop.epochs == 1
    assert after.optimiser.rate == pytest.approx(before.optimiser.rate / 3)
    assert (after.teacher.weight, after.regulariser.name) == (1.0, "taser")
    assert after.data == before.data
    said = run("finetune", "--model", "plain", "--recipe", "finetune/trades", code=1)
    assert "leave out --recipe" in said
    assert "give --weights" in run("finetune", "--model", "cnn", code=1)


def test_results_are_in_a_folder_for_each_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("train", *SMALL)
    home = "out/train/digits_standard"
    assert (tmp_path / home / "best.safetensors").exists()
    quick = ("--epsilon", "0.1", "-n", "20", "--attacks", "fgsm", "--no-curve")
    run("evaluate", "--model", home, *quick)
    run("evaluate", "--model", home, "--weights", f"{home}/last.safetensors", *quick)
    assert {path.name for path in (tmp_path / "out" / "evaluate").iterdir()} == {
        "out_train_digits_standard-digits-linf-0.1",
        "out_train_digits_standard-last-digits-linf-0.1",
    }
    said = run("evaluate", "--model", home, "--attacks", "autoatack", code=1)
    assert "no attack called 'autoatack' (did you mean 'autoattack'?)" in said
