"""Whole runs, small ones: every method, what they write, and what they refuse."""

import json
import math
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from accelerate.state import AcceleratorState
from filelock import FileLock
from small_runs import MLP, initial, lines, same, small, weights
from torch import nn

from cases import images
from taser import objectives, regularisers
from taser._checkpoint import latest_checkpoint, save_checkpoint
from taser.attacks import PGD, Threat
from taser.data import Dataset, Split
from taser.training import Config, load_trained, override, read_recipe, train
from taser.training import _build as training_build
from taser.training import _run as run
from taser.training._build import (
    build_augmentation,
    build_data,
    build_objective,
    describe_network,
    set_up,
)
from taser.training._run_folder import read_data_config
from taser.training._step import AttackView

AWP = {"awp": True, "awp_start": 0}
METHODS: dict[str, dict[str, Any]] = {
    "standard": {"name": "standard"},
    "pgd": {"name": "pgd"},
    "trades": {"name": "trades"},
    "mart": {"name": "mart"},
    "trades+awp": {"name": "trades", **AWP},
    "mart+awp": {"name": "mart", **AWP},
}


@pytest.mark.parametrize("regulariser", ["none", "taser"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(tmp_path: Path, method: str, regulariser: str) -> None:
    config = small(objective=METHODS[method], regulariser={"name": regulariser})
    result = train(config, tmp_path)
    assert result.steps == 2
    before, after = initial(config), weights(tmp_path)
    still = [name for name in before if torch.equal(before[name], after[name])]
    assert still == ["mean", "std"]  # the normalisation is not learnt
    for line in lines(tmp_path, "train"):
        assert math.isfinite(line["loss"])
        assert ("penalty" in line) == (regulariser == "taser")
    assert 0 <= result.robust <= result.clean <= 1


@pytest.mark.parametrize("name", ["taser", "gradient-norm", "jacobian"])
def test_each_option_changes_the_weights(tmp_path: Path, name: str) -> None:
    """From the first step, since the ramp is off; and λ = 0 is the run without it."""
    train(small(), tmp_path / "none")
    for weight in (0.0, 1.0):
        train(small(regulariser={"name": name, "weight": weight}), tmp_path / str(weight))
    assert same(weights(tmp_path / "0.0"), weights(tmp_path / "none"))
    assert not same(weights(tmp_path / "1.0"), weights(tmp_path / "none"))


def test_a_run_again_gives_the_same_bits(tmp_path: Path) -> None:
    config = small(objective={"name": "pgd"}, regulariser={"name": "taser"})
    for name in ("one", "two"):
        train(config, tmp_path / name)
    for which in ("best", "last"):
        assert same(weights(tmp_path / "one", which), weights(tmp_path / "two", which))
    seeded = small(objective={"name": "pgd"}, regulariser={"name": "taser"}, loop={"seed": 1})
    train(seeded, tmp_path / "other")
    assert not same(weights(tmp_path / "one"), weights(tmp_path / "other"))


def test_a_table_of_127_rows_is_trained_on_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).normal(size=(127, 3)).astype(np.float32)
    rows = {"x": values[:100], "y": np.arange(100) % 2}
    held_out = {f"{n}_{part}": v for part in ("validation", "test") for n, v in rows.items()}
    targets = np.arange(127) % 2
    np.savez(tmp_path / "table.npz", x_train=values, y_train=targets, **held_out)
    seen: list[list[int]] = []
    step = run._Run._step
    monkeypatch.setattr(
        run._Run, "_step", lambda self, b: (seen.append(b.index.tolist()), step(self, b))
    )
    data = {"name": str(tmp_path / "table.npz"), "examples": None}
    train(small(data=data, model=MLP, loop={"epochs": 2}), tmp_path / "run")
    assert [len(index) for index in seen] == [64, 63, 64, 63]
    for epoch in (seen[:2], seen[2:]):
        assert sorted(epoch[0] + epoch[1]) == list(range(127))


@pytest.mark.parametrize(("world", "sizes"), [(1, [64, 63]), (2, [64, 63]), (32, [127])])
def test_each_process_has_an_equal_share(
    monkeypatch: pytest.MonkeyPatch, world: int, sizes: list[int]
) -> None:
    """At least two rows; less than one for each process is dropped."""
    for place in (training_build, run):
        monkeypatch.setattr(place, "world_size", lambda: world)
    split = Split(torch.rand(127, 1, 8, 8), torch.arange(127) % 10)
    data = Dataset("some", split, split, split, tuple("0123456789"))
    setup = set_up(small(model=MLP), data)
    one = object.__new__(run._Run)
    one.setup = setup
    for batch, size in zip(setup.batches, sizes, strict=True):
        shares = []
        for rank in range(world):
            setup.rank = rank
            shares.append(one._own_part(batch)[1])
        assert len(batch.y) == size
        assert {len(share) for share in shares} == {size // world}
        assert size // world >= 2
        assert torch.equal(torch.cat(shares), batch.y[: world * (size // world)])


@pytest.mark.parametrize("method", ["standard", "pgd"])
@pytest.mark.parametrize("name", ["breast-cancer", "diabetes"])
def test_tables_and_regression(tmp_path: Path, name: str, method: str) -> None:
    config = small(
        data={"name": name}, model={**MLP, "activation": "silu"},
        objective={"name": method, "epsilon": 0.3},
        regulariser={"name": "taser", "operator": "langevin", "weight": 1e-3, "every": 1},
        optimiser={"rate": 0.01}, loop={"epochs": 12}, validation={"examples": 512},
    )  # fmt: skip
    result = train(config, tmp_path)
    losses = [line["base"] for line in lines(tmp_path, "train")]
    assert sum(losses[-2:]) < 0.9 * sum(losses[:2])  # two steps are an epoch
    validated = lines(tmp_path, "validation")[-1]
    assert validated["robust"] < validated["clean"]  # accuracy, or minus the squared error
    assert (result.clean <= 0) == (name == "diabetes")
    penalties = [line["penalty"] for line in lines(tmp_path, "train")]
    assert all(0 < penalty < math.inf for penalty in penalties)


@pytest.mark.parametrize("method", ["trades", "mart"])
def test_methods_that_compare_classes_refuse_regression(tmp_path: Path, method: str) -> None:
    config = small(data={"name": "diabetes"}, model=MLP, objective={"name": method})
    with pytest.raises(ValueError, match=f"{method} compares class probabilities"):
        train(config, tmp_path)
    with pytest.raises(ValueError, match=r"teacher.weight is for classifiers"):
        train(small(data={"name": "diabetes"}, model=MLP, teacher={"weight": 1}), tmp_path)


@pytest.mark.parametrize("method", objectives.OBJECTIVES)
def test_every_method_smooths_labels(method: str) -> None:
    objective = set_up(small(objective={"name": method, "label_smoothing": 0.1})).learner.objective
    assert objective.label_smoothing == 0.1  # type: ignore[attr-defined]


def test_options_that_the_task_ignores_are_refused() -> None:
    config = small(data={"name": "diabetes"}, model=MLP, objective={"label_smoothing": 0.1})
    with pytest.raises(ValueError, match="no labels to smooth"):
        set_up(config)


def test_the_training_part_is_not_kept_as_floats() -> None:
    """Its mean and deviation are computed once; bytes are a quarter of the memory."""
    dataset = images(64)
    describe_network(small().model, dataset)
    assert "x" not in vars(dataset.train)


def test_accumulated_parts_are_the_whole_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without BatchNorm and with draws that do not depend on the parts.

    Sums in float32 round to 1e-7 in another order, and SGD carries that on without magnifying it.
    An attack would, by the sign of a gradient that is nearly zero; these batches have none.
    """
    monkeypatch.setattr(PGD, "_begin", lambda _, x, __: x + 1e-3 * (50 * x).sin())
    for parts in (1, 3):
        config = small(
            model=MLP, objective={**METHODS["trades+awp"]}, teacher={"weight": 1.0},
            regulariser={"name": "gradient-norm", "weight": 1.0, "backend": "reverse"},
            optimiser={"name": "sgd", "rate": 0.05, "clip": 1.0},
            loop={"accumulate": parts, "epochs": 2, "batch": 60},  # batches of 60, 60 and 9
        )  # fmt: skip
        train(config, tmp_path / str(parts))
    one, three = (weights(tmp_path / name) for name in ("1", "3"))
    assert not same(one, three)
    torch.testing.assert_close(one, three, rtol=1e-5, atol=1e-5)
    for whole, pieces in zip(*(lines(tmp_path / n, "train") for n in ("1", "3")), strict=True):
        assert {**pieces, "kind": 0} == pytest.approx({**whole, "kind": 0}, rel=1e-4, abs=1e-5)


def test_clipped_gradients(tmp_path: Path) -> None:
    """One step of plain SGD then has the length rate · clip."""
    config = small(
        model=MLP, loop={"batch": 128},
        optimiser={"name": "sgd", "momentum": 0, "weight_decay": 0, "rate": 0.5, "clip": 0.01},
    )  # fmt: skip
    train(config, tmp_path)
    before, after = initial(config), weights(tmp_path)
    length = torch.cat([(after[name] - before[name]).flatten() for name in before]).norm()
    assert float(length) == pytest.approx(0.005, rel=1e-3)


def test_attacks_on_a_folded_model_are_the_same_attacks(tmp_path: Path) -> None:
    """BatchNorm folded into convolutions rounds otherwise, and nothing else."""
    for fold in (False, True):
        config = small(objective={"name": "pgd"}, loop={"fold": fold})
        train(config, tmp_path / str(fold))
    apart, together = (lines(tmp_path / name, "train")[0] for name in ("False", "True"))
    assert together["base"] == pytest.approx(apart["base"], rel=1e-5)
    assert set(weights(tmp_path / "True")) == set(weights(tmp_path / "False"))


def test_bfloat16(tmp_path: Path) -> None:
    """Half precision for the base loss, float32 for the weights and for the penalty."""
    runs = {}
    for precision in ("float32", "bfloat16"):
        config = small(
            objective={"name": "trades"}, regulariser={"name": "taser"}, model=MLP,
            loop={"precision": precision},
        )  # fmt: skip
        train(config, tmp_path / precision)
        runs[precision] = lines(tmp_path / precision, "train")[0]
    assert runs["bfloat16"]["natural"] != runs["float32"]["natural"]
    assert runs["bfloat16"]["natural"] == pytest.approx(runs["float32"]["natural"], rel=2**-7)
    # Of the same first weights: in float32 the first difference is one-sided, with an error of
    # order t = 0.003, since f(x) comes from the loss.
    assert runs["bfloat16"]["penalty"] == pytest.approx(runs["float32"]["penalty"], rel=1e-2)
    assert {tensor.dtype for tensor in weights(tmp_path / "bfloat16").values()} == {torch.float32}
    with pytest.raises(ValueError, match="float16 training needs a GPU"):
        train(small(loop={"precision": "float16"}), tmp_path / "float16")


def test_options_of_accelerate_do_not_reach_the_penalty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`accelerate launch --mixed_precision=bf16` would wrap the model's own forward."""
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    setup = set_up(small())
    x = next(iter(setup.batches)).x
    model = setup.learner.module.eval()
    assert torch.equal(model(x), type(model).forward(model, x))


def test_the_folder_of_a_run(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    config = small(loop={"epochs": 2})
    result = train(config, tmp_path, report=lambda *progress: seen.append(progress))
    assert [(done, total) for done, total, _ in seen] == [(k, 4) for k in (0, 1, 2, 2, 3, 4, 4)]
    stages = [label.split(" · ")[0] for *_, label in seen]
    assert stages == [
        *["training, epoch 1/2"] * 3, "validation, epoch 1/2", *["training, epoch 2/2"] * 2,
        "validation, epoch 2/2",
    ]  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {
        ".lock", "best.safetensors", "checkpoints", "config.yaml", "data.json", "last.safetensors",
        "log.jsonl", "model.json", "result.json",
    }  # fmt: skip
    kept = (path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file())
    assert {path.suffix for path in kept} == {".safetensors", ".json"}  # no pickle
    assert read_recipe(tmp_path / "config.yaml") == config
    model = load_trained(tmp_path)
    assert not model.training
    assert same(dict(model.state_dict()), weights(tmp_path, "best"))
    again = train(config, tmp_path)  # there is nothing left to do
    assert (again.steps, again.best_step, again.robust) == (4, result.best_step, result.robust)
    with pytest.raises(ValueError, match="is not the folder of a training run"):
        load_trained(tmp_path / "checkpoints")


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    train(small(model=MLP), tmp_path)
    checkpoint = latest_checkpoint(tmp_path / "checkpoints")
    assert checkpoint is not None
    checkpoint.state["progress"]["gone"] = 1
    save_checkpoint(tmp_path / "checkpoints", 1000, checkpoint)
    with pytest.raises(ValueError, match=r"was written by another version of taser \(.*gone"):
        train(small(model=MLP), tmp_path)


def test_a_run_that_lost_a_file_is_refused(tmp_path: Path) -> None:
    train(small(model=MLP), tmp_path)
    best = (tmp_path / "best.safetensors").read_bytes()
    (tmp_path / "best.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has lost its best weights, best\.safetensors, of step"):
        train(small(model=MLP), tmp_path)
    (tmp_path / "best.safetensors").write_bytes(best)
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(ValueError, match=r"holds checkpoints without a run's config\.yaml"):
        train(small(model=MLP, optimiser={"rate": 0.5}), tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "log.jsonl").write_text("mine")
    with pytest.raises(ValueError, match=r"holds log\.jsonl without a run's config\.yaml"):
        train(small(model=MLP), tmp_path / "mine")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "should hold a JSON object; got []"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ({"classes": None}, "classes is missing"),
        ({"name": 3}, "does not describe a network"),
        ({"shape": 64}, "does not describe a network"),
        ({"classes": "x"}, "does not describe a network"),
        ({"options": [1]}, "does not describe a network"),
    ],
)
def test_a_damaged_model_json_is_named(tmp_path: Path, content: str | dict, message: str) -> None:
    if isinstance(content, dict):
        whole = {"name": "mlp", "classes": 10, "shape": [64], "options": {}, **content}
        content = json.dumps({k: value for k, value in whole.items() if value is not None})
    (tmp_path / "model.json").write_text(content)
    (tmp_path / "best.safetensors").touch()
    with pytest.raises(ValueError, match=re.escape(message)):
        load_trained(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(RuntimeError, match="another process is training in"),
    ):
        train(small(model=MLP), tmp_path)
    assert not (tmp_path / "checkpoints").exists()
    train(small(model=MLP), tmp_path)


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    train(small(), tmp_path)
    other = small(objective={"name": "pgd"}, optimiser={"rate": 0.5})
    with pytest.raises(ValueError, match="another configuration") as caught:
        train(other, tmp_path)
    for difference in ("objective.name was 'standard', is 'pgd'", "optimiser.rate was 0.001, is"):
        assert difference in str(caught.value)
    assert "loop." not in str(caught.value)
    train(small(loop={"save_minutes": 1.0}), tmp_path)  # which changes no weight


OLDER = {
    "  gone: 1\n": r"there is no regulariser\.gone",
    "  at: auto\n  unit: noise\n  center: batch\n  name: gradient\n": (
        r"regulariser\.at=auto was replaced by regulariser\.form, "
        r"regulariser\.unit=noise was replaced by regulariser\.form, "
        r"regulariser\.name=gradient was replaced by regulariser\.name=gradient-norm"
    ),
    "  at: clean\n  unit: paper\n": r"regulariser\.at=clean was replaced by regulariser\.form",
}


def test_a_run_with_removed_keys_at_their_defaults_resumes(tmp_path: Path) -> None:
    train(small(), tmp_path)
    recipe = tmp_path / "config.yaml"
    content = yaml.safe_load(recipe.read_text())
    content["regulariser"] |= {"cache": None, "unit": "form"}
    recipe.write_text(yaml.safe_dump(content))
    assert train(small(), tmp_path).steps == 2
    assert load_trained(tmp_path) is not None


@pytest.mark.parametrize("keys", OLDER)
def test_a_run_with_replaced_keys_is_refused(tmp_path: Path, keys: str) -> None:
    """It cannot continue, but its network and its data can be loaded."""
    train(small(data={"seed": 3}), tmp_path)
    recipe = tmp_path / "config.yaml"
    content = yaml.safe_load(recipe.read_text())
    content["regulariser"] |= yaml.safe_load(keys)
    recipe.write_text(yaml.safe_dump(content))
    with pytest.raises(
        ValueError, match=rf"of another version of taser \(.*{OLDER[keys]}.*choose another folder"
    ) as caught:
        train(small(data={"seed": 3}), tmp_path)
    assert "\n" not in str(caught.value)
    assert read_data_config(tmp_path) == small(data={"seed": 3}).data
    assert same(dict(load_trained(tmp_path).state_dict()), weights(tmp_path, "best"))


def test_a_checkpoint_of_the_first_version_resumes(tmp_path: Path) -> None:
    """The names of its files, groups and keys, as they were written before RunState."""
    config = small(loop={"epochs": 2, "ema": 0.5}, teacher={"weight": 1.0})
    train(config, tmp_path / "whole")
    train(config, tmp_path / "resumed")
    newest = sorted((tmp_path / "resumed" / "checkpoints").iterdir())[-1]
    state = json.loads((newest / "state.json").read_text())["state"]
    assert set(state) == {"progress", "batches", "scaler", "data"}
    assert set(state["progress"]) - {"weight"} == {
        "step", "best", "best_step", "stale", "seconds", "sums", "summed"
    }  # fmt: skip
    assert {path.name for path in newest.iterdir()} == {
        "state.json", "model.safetensors", "optimiser.safetensors", "average.safetensors",
        "teacher.safetensors",
    }  # fmt: skip
    shutil.rmtree(newest)
    train(config, tmp_path / "resumed")
    assert same(weights(tmp_path / "resumed"), weights(tmp_path / "whole"))


def test_other_data_are_refused(tmp_path: Path) -> None:
    rows = ["a,b,y", *(f"{i % 7},{i % 5},{'no' if i % 3 else 'yes'}" for i in range(90))]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(rows))
    data = {"name": str(table), "examples": None, "target": "y"}
    config = small(data=data, model=MLP, loop={"batch": 16})
    train(config, tmp_path / "run")
    rows[5] = "9,9,yes"
    table.write_text("\n".join(rows))
    with pytest.raises(ValueError, match="the data are not those that this run began with"):
        train(config, tmp_path / "run")


def test_about_as_many_examples_as_requested() -> None:
    """Of each class its share, which rounds by up to half an example."""
    for n in (100, 128, 333):
        y = build_data(small(data={"examples": n}).data).train.y
        assert abs(len(y) - n) <= 10 / 2
        assert set((y.bincount() - n / 10).abs().round().int().tolist()) <= {0, 1}
    with pytest.raises(ValueError, match=r"data.examples should be at most 1295; got 5000"):
        build_data(small(data={"examples": 5000}).data)


@pytest.mark.parametrize(
    "name",
    [
        "loop.epochs", "loop.batch", "loop.accumulate", "validation.every", "validation.examples",
        "validation.patience",
    ],
)  # fmt: skip
def test_invalid_counts_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} should be at least 1; got 0"):
        override(Config(), [f"{name}=0"])


def test_defaults_are_the_paper_s() -> None:
    config = Config()
    assert (config.optimiser.name, config.optimiser.rate) == ("adam", 1e-3)
    assert config.optimiser.betas == (0.9, 0.999)
    assert config.optimiser.weight_decay == 1e-4
    assert (config.schedule.name, config.schedule.warmup) == ("cosine", 0.0)
    assert (config.loop.batch, config.loop.epochs) == (256, 200)
    assert (config.regulariser.form, config.regulariser.weight) == ("steepest", 0.3)
    assert (config.objective.beta, config.objective.mart_weight) == (6.0, 5.0)
    assert (config.objective.epsilon, config.objective.steps) == (8 / 255, 10)
    inner = PGD(Threat("linf", config.objective.epsilon), config.objective.steps)
    assert config.objective.step_size is inner.step_size is None
    assert inner.effective_step_size == pytest.approx(2 / 255)
    assert (config.objective.awp_gamma, config.objective.awp_start) == (0.005, 10)


def test_a_batch_in_parts_has_the_penalty_of_the_batch(tmp_path: Path) -> None:
    """Each part is centred by its own mean, which makes its variance short by 1/n of the part.

    The mean over the first steps' draws; parts of four would be short by a quarter, while the
    draws of 48 examples scatter by a few per cent over the run.
    """
    found = []
    for parts in (1, 16):
        config = small(
            model=MLP, regulariser={"name": "taser", "weight": 0.0, "fraction": 1.0},
            optimiser={"rate": 0.0}, loop={"accumulate": parts, "epochs": 40},
        )  # fmt: skip
        train(config, tmp_path / str(parts))
        values = [line["penalty"] for line in lines(tmp_path / str(parts), "train")]
        found.append(sum(values) / len(values))
    assert found[1] == pytest.approx(found[0], rel=0.1)


def test_parts_of_one_example_are_refused() -> None:
    with pytest.raises(ValueError, match="leaves single examples"):
        small(regulariser={"name": "taser", "form": "paired"}, loop={"accumulate": 64})


def test_parts_of_one_example_are_refused_where_the_data_are_fewer_than_a_batch(
    tmp_path: Path,
) -> None:
    config = small(
        data={"examples": 40},
        regulariser={"name": "taser", "form": "paired"},
        loop={"accumulate": 32, "batch": 128},
    )
    with pytest.raises(ValueError, match="leaves single examples of a batch of 40"):
        train(config, tmp_path)


@pytest.mark.parametrize(("size", "parts"), [(10, 4), (25, 8), (3, 5)])
def test_parts_are_as_equal_as_can_be(size: int, parts: int) -> None:
    """`chunk` would leave one example at the end, which has no variance."""
    learner = set_up(small(loop={"accumulate": parts}), images(32)).learner
    pieces = learner._attack(
        torch.rand(size, 3, 32, 32), torch.zeros(size).long(), torch.Generator()
    )
    sizes = [len(piece.x) for piece in pieces]
    assert sum(sizes) == size
    assert max(sizes) - min(sizes) <= 1


def test_layers_that_hooks_compute_are_attacked_as_they_are() -> None:
    """`spectral_norm` before a BatchNorm cannot be folded; training goes on without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the old one is deprecated
        convolution = torch.nn.utils.spectral_norm(nn.Conv2d(1, 4, 3))
    module = nn.Sequential(convolution, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    attacked = AttackView()
    assert attacked.of(module, torch.rand(8, 1, 8, 8)) is module
    assert not attacked.fold


def test_a_fold_is_rejected_while_the_last_layer_is_zero() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)
    ).eval()
    nn.init.zeros_(module[3].weight)
    x, attacked = torch.rand(8, 1, 8, 8), AttackView()
    assert attacked.of(module, x) is module
    nn.init.normal_(module[3].weight)
    assert attacked.of(module, x) is not module


def test_a_step_minimises_what_the_paper_writes(tmp_path: Path) -> None:
    """L_base + α·KL + λ(t)·R, with the ramp of λ and warm-up and cosine of the rate."""
    config = small(
        model=MLP, objective={"name": "trades"}, teacher={"weight": 0.7},
        regulariser={"name": "taser", "weight": 0.3, "ramp": 0.5, "fraction": 1.0},
        schedule={"warmup": 0.25, "final": 0.1}, loop={"epochs": 4},
    )  # fmt: skip
    train(config, tmp_path)
    found = lines(tmp_path, "train")  # eight steps, a line each
    ramp = [0.3 * min(1, t / 4) for t in range(8)]
    assert [line["weight"] for line in found] == pytest.approx(ramp)
    cosine = [1e-4 + 0.45e-3 * (1 + math.cos(math.pi * (t - 2) / 6)) for t in range(2, 8)]
    assert [line["rate"] for line in found] == pytest.approx([5e-4, 1e-3, *cosine])
    for line in found:
        total = line["base"] + line["weight"] * line["penalty"] + 0.7 * line["teacher"]
        assert line["loss"] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("method", ["pgd", "trades", "mart"])
def test_the_penalty_is_evaluated_on_the_clean_batch(method: str) -> None:
    """As the paper says, whatever points the base loss is taken at."""
    exact = {"name": "taser", "score": "gaussian", "form": "paper", "backend": "exact"}
    found = []
    for name in ("standard", method):
        setup = set_up(
            small(model={**MLP, "activation": "silu"}, objective={"name": name}, regulariser=exact)
        )
        x, y, *_ = next(iter(setup.batches))
        drawn = torch.Generator().manual_seed(0)
        numbers = setup.learner.step(x, y, drawn, weight=0.0, perturb=False)
        found.append(float(numbers["penalty"]))
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_a_lazy_penalty_counts_steps_and_not_parts(tmp_path: Path) -> None:
    lazy = {"name": "taser", "every": 2, "fraction": 1.0}
    train(small(model=MLP, regulariser=lazy, loop={"accumulate": 2, "epochs": 2}), tmp_path)
    assert [line["penalty"] > 0 for line in lines(tmp_path, "train")] == [True, False] * 2


def test_every_objective_key_reaches_the_objective() -> None:
    data = build_data(small().data)
    given = {"norm": "l2", "epsilon": 0.3, "steps": 7, "step_size": 0.02}
    trades, mart, pgd = (
        build_objective(small(objective={**given, **own}).objective, data)
        for own in (
            {"name": "trades", "beta": 2.5},
            {"name": "mart", "mart_weight": 3.5},
            {"name": "pgd", "label_smoothing": 0.1},
        )
    )
    assert isinstance(trades, objectives.TRADES)
    assert isinstance(mart, objectives.MART)
    assert isinstance(pgd, objectives.PGD)
    assert (trades.beta, mart.weight, pgd.label_smoothing) == (2.5, 3.5, 0.1)
    for made, start in ((trades, "gaussian"), (mart, "gaussian"), (pgd, "random")):
        assert made.inner == PGD(Threat("l2", 0.3), 7, 0.02, start)
    assert set_up(small(objective={"awp": True, "awp_gamma": 0.02})).learner.awp_gamma == 0.02
    assert set_up(small(validation={"steps": 3})).attack.steps == 3


def test_every_regulariser_key_reaches_the_regulariser() -> None:
    keys = {
        "operator": "langevin", "backend": "reverse", "probes": 3, "step": 0.02, "center": "none",
        "unbiased": True, "batchnorm": "running", "every": 2, "fraction": 0.5,
    }  # fmt: skip
    regulariser = set_up(small(regulariser={"name": "taser", **keys})).learner.regulariser
    assert isinstance(regulariser, regularisers.Taser)
    found = {k: getattr(regulariser, k) for k in keys if k != "center"}
    assert {**found, "center": regulariser.center.kind} == keys


def test_augmentation_by_data_set() -> None:
    auto = small(data={"augment": "auto", "padding": 3}).data
    cifar = build_augmentation(auto, images(8))  # whose name is cifar10
    assert cifar is not None
    assert (cifar.padding, cifar.flip) == (3, True)
    digits = build_data(auto)
    assert build_augmentation(auto, digits) is None
    crop = build_augmentation(small(data={"augment": "crop"}).data, digits)
    assert crop is not None
    assert not crop.flip
