"""Recipes: what is read, what is refused, and that the refusal helps."""

from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from taser.training import Config, override, read_recipe, to_yaml
from taser.training._recipes import shipped_recipes

SECTIONS = [section.name for section in fields(Config)]


def recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def test_a_recipe_changes_what_it_names(tmp_path: Path) -> None:
    path = recipe(
        tmp_path,
        """
        data: {name: cifar10, examples: 500}
        model: {name: resnet18, options: {mean: [0.5, 0.5, 0.5]}}
        objective: {name: trades, epsilon: 8/255, step_size: 2e-3, awp: true}
        optimiser: {betas: [0.5, 0.9], clip: 1}
        schedule:
        """,
    )
    config = read_recipe(path)
    assert config.data.examples == 500
    assert config.model.options == {"mean": [0.5, 0.5, 0.5]}
    assert config.objective.epsilon == 8 / 255
    assert config.objective.step_size == 2e-3  # YAML takes 2e-3 for text: it has no point
    assert config.objective.awp is True
    assert config.optimiser.betas == (0.5, 0.9)
    assert config.optimiser.clip == 1.0
    assert config.schedule == Config().schedule
    assert config.loop == Config().loop


def test_an_empty_recipe_is_the_default(tmp_path: Path) -> None:
    assert read_recipe(recipe(tmp_path, "")) == Config()


def test_yaml_gives_the_configuration_again(tmp_path: Path) -> None:
    config = override(
        Config(),
        [
            "objective.epsilon=8/255", "regulariser.weight=1e-17", "optimiser.betas=[0.1, 0.2]",
            "schedule.milestones=[0.25]", "model.options.depth=3", "data.name=Übung.csv",
            "optimiser.clip=0.1", "regulariser.name=none", "data.target='1'",
        ],
    )  # fmt: skip
    assert config != Config()
    assert read_recipe(recipe(tmp_path, to_yaml(config))) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loop: {epoch: 3}", r"there is no loop.epoch \(did you mean 'epochs'\?\); the keys are"),
        ("loop: {rate: 1}", r"there is no loop.rate \(optimiser.rate\?\); the keys are"),
        ("optimizer: {rate: 1}", r"there is no optimizer \(did you mean 'optimiser'\?\)"),
        ("objective: {name: pdg}", r"objective.name should be one of .* \(did you mean 'pgd'\?\)"),
        ("loop: {epochs: 2.5}", "loop.epochs should be a whole number; got 2.5"),
        ("loop: {epochs: true}", "loop.epochs should be a whole number; got True"),
        ("loop: {epochs: }", "loop.epochs should be a whole number; got None"),
        ("objective: {awp: 1}", "objective.awp should be true or false; got 1"),
        ("objective: {epsilon: true}", "objective.epsilon should be a number; got True"),
        (
            "objective: {epsilon: 8/0}",
            "objective.epsilon should be a number or a fraction such as 8/255",
        ),
        (
            "objective: {epsilon: small}",
            "objective.epsilon should be a number or a fraction .* 'small'",
        ),
        ("data: {name: 3}", "data.name should be text; got 3"),
        ("optimiser: {betas: 0.9}", "optimiser.betas should be a list; got 0.9"),
        ("optimiser: {betas: [0.9]}", "optimiser.betas should be 2 numbers"),
        ("schedule: {milestones: [a]}", "schedule.milestones should be a number or a fraction"),
        ("model: {options: 3}", "model.options should hold keys; got 3"),
        ("regulariser: {at: clean}", r"regulariser\.at=clean was replaced by regulariser\.form"),
        ("regulariser: {unit: ratio}", r"unit=ratio was replaced by regulariser\.target_loss"),
        ("regulariser: {unit: noise}", r"unit=noise was replaced by regulariser\.form \(a form"),
        ("regulariser: {name: gradient}", r"=gradient was replaced by regulariser\.name=gradient-"),
        ("regulariser: {cache: scores}", r"regulariser\.cache is gone, since"),
        ("loop: 3", "loop should hold keys; got 3"),
        ("[1, 2]", r"should hold keys and their values; got \[1, 2\]"),
        ("loop: {epochs: 3", "recipe.yaml cannot be read as YAML"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_recipe(recipe(tmp_path, text))
    assert "recipe.yaml" in str(caught.value)  # where to look


@pytest.mark.parametrize("section", SECTIONS)
def test_a_key_without_its_section(tmp_path: Path, section: str) -> None:
    """Whatever key it is, and however near the name of some section may be."""
    for field in fields(getattr(Config(), section)):
        if field.name in SECTIONS:  # data.validation: a section is what one means by it
            continue
        with pytest.raises(ValueError, match=rf"\b{section}\.{field.name}\b.*\?"):
            read_recipe(recipe(tmp_path, f"{field.name}: 1"))
        with pytest.raises(ValueError, match=rf"\b{section}\.{field.name}\b.*\?"):
            override(Config(), [f"{field.name}=1"])


def test_a_recipe_extends_another(tmp_path: Path) -> None:
    """By its path or its name; keys of the same section are joined."""
    (tmp_path / "base.yaml").write_text("loop: {epochs: 3, batch: 7}\ndata: {name: digits}")
    for base in (f"{tmp_path}/base.yaml", "base.yaml"):  # or beside it
        path = recipe(tmp_path, f"extends: {base}\nloop: {{batch: 8}}")
        config = read_recipe(path, ["loop.seed=5"])
        assert (config.loop.epochs, config.loop.batch, config.loop.seed) == (3, 8, 5)


FAMILY = """
loop: {epochs: 3, batch: 7}
methods:
  standard: {}
  pgd: {objective: {name: pgd}, loop: {batch: 9}}
"""


def test_a_file_holds_a_recipe_for_each_method(tmp_path: Path) -> None:
    """The method's keys change the file's, and those of a file that extends it."""
    family = recipe(tmp_path, FAMILY)
    assert read_recipe(f"{family}/standard") == override(
        Config(), ["loop.epochs=3", "loop.batch=7"]
    )
    config = read_recipe(f"{family}/pgd", ["loop.seed=5"])
    assert (config.objective.name, config.loop.seed) == ("pgd", 5)
    assert (config.loop.epochs, config.loop.batch) == (3, 9)
    other = tmp_path / "other.yaml"
    other.write_text("extends: recipe.yaml\nloop: {epochs: 4, batch: 8}")
    assert read_recipe(f"{other}/standard").loop.batch == 8
    assert read_recipe(f"{other}/pgd").loop.epochs == 4
    other.write_text("extends: recipe.yaml/pgd\nloop: {epochs: 4}")
    assert (read_recipe(other).loop.epochs, read_recipe(other).loop.batch) == (4, 9)


def test_a_method_has_to_be_named(tmp_path: Path) -> None:
    family = recipe(tmp_path, FAMILY)
    with pytest.raises(ValueError, match=r"several recipes; take one of .*/standard, .*/pgd"):
        read_recipe(family)
    for name in (f"{family}/pdg", "tables/diabetes/pgd", "digits/common"):
        with pytest.raises(ValueError, match=f"there is no file and no recipe '{name}'"):
            read_recipe(name)


def test_a_study_is_no_recipe_of_a_run() -> None:
    with pytest.raises(ValueError, match="is a comparison: `taser compare compare/digits`"):
        read_recipe("compare/digits")


def test_a_recipe_cannot_extend_itself(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    path = recipe(tmp_path, f"extends: {other}")
    other.write_text(f"extends: {path}")
    with pytest.raises(ValueError, match=r"recipe.yaml extends itself, by way of other.yaml"):
        read_recipe(path)


RUNS = [name for name in shipped_recipes() if not name.startswith("compare/")]  # of many runs


@pytest.mark.parametrize("name", RUNS)
def test_shipped_recipes_can_be_read(name: str) -> None:
    config = read_recipe(name)
    known = ("digits", "cifar10", "fashion-mnist", "breast-cancer", "diabetes", "wine")
    assert config.data.name in known


def test_the_nearest_recipe_is_named() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'digits/pgd'\?"):
        read_recipe("digits/pdg")


def test_overrides() -> None:
    config = override(
        Config(),
        ["loop.epochs=3", "objective.epsilon=4/255", "data.examples=null", "loop.epochs=4"],
    )
    assert config.loop == replace(Config().loop, epochs=4)  # the last one counts
    assert config.objective == replace(Config().objective, epsilon=4 / 255)
    assert {k: v for k, v in asdict(config).items() if k not in ("loop", "objective")} == {
        k: v for k, v in asdict(Config()).items() if k not in ("loop", "objective")
    }


def test_an_override_keeps_the_other_options_of_a_model() -> None:
    config = override(Config(), ["model.options={depth: 2}", "model.options.norm=false"])
    assert config.model.options == {"depth": 2, "norm": False}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("loop.epochs", r"section.key=value; got 'loop.epochs'"),
        ("=3", r"section.key=value; got '=3'"),
        ("lop.epochs=3", r"there is no lop \(did you mean 'loop'\?\)"),
        ("loop.epoch=3", r"there is no loop.epoch \(did you mean 'epochs'\?\); the keys are"),
        ("loop.epochs=many", "loop.epochs should be a whole number; got 'many'"),
        ("loop.epochs=[1", r"the value in loop.epochs=\[1 is not YAML"),
        ("regulariser.ramp=2", "regulariser.ramp is a share, from 0 to 1; got 2"),
        ("schedule.warmup=-0.1", "schedule.warmup is a share, from 0 to 1; got -0.1"),
        ("regulariser.at=noised", r"regulariser\.at=noised was replaced by regulariser\.form"),
        ("regulariser.unit=noise", r"unit=noise was replaced by regulariser\.form"),
        ("regulariser.name=gradient", r"was replaced by regulariser\.name=gradient-norm"),
        ("regulariser.weight=-1", "regulariser.weight should be zero or more; got -1"),
        ("optimiser.rate=.nan", "optimiser.rate should be zero or more; got nan"),
        ("objective.step_size=2", r"far more than epsilon=0.0313725; did you mean 2/255\?"),
        ("objective.awp_gamma=-0.1", "objective.awp_gamma should be zero or more"),
        ("teacher.weight=-1", "teacher.weight should be zero or more"),
        ("optimiser.clip=0", "optimiser.clip should be positive, or null for none; got 0"),
        ("schedule.milestones=[100, 150]", "schedule.milestones is a share, from 0 to 1; got 100"),
        ("loop.ema=2", "loop.ema is a share"),
        ("loop.seed=-1", "loop.seed should be zero or more"),
        ("data.examples=0", "data.examples should be at least 1; got 0"),
        ("loop.epochs.more=1", "loop.epochs is no section with keys"),
        ("model.optoins.depth=1", r"there is no model.optoins \(did you mean 'options'\?\)"),
    ],
)
def test_overrides_that_are_refused(assignment: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(Config(), [assignment])
