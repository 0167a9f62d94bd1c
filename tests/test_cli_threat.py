"""Structured threats from the command line and in recipes, by the names of a table's columns."""

import csv
import json
import random
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from taser import Threat, evaluate
from taser.cli import app
from taser.cli._options import read_threat
from taser.data import load
from taser.data._dataset import Preprocessing
from taser.report._evaluation_report import _expected, summary
from taser.training import read_recipe
from taser.training._build import build_data, build_threat

JOBS = ("clerk", "driver", "nurse")


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Who gets a loan: two columns of whole numbers, one of any, two of categories."""
    draws = random.Random(0)
    rows = []
    for _ in range(160):
        age, hours, wage = (
            draws.randint(18, 80),
            draws.randint(10, 60),
            round(draws.gauss(20, 5), 2),
        )
        job, sex = draws.choice(JOBS), draws.choice(["female", "male"])
        likes = 0.05 * (age - 45) + 0.1 * (wage - 20) + 2 * (job == "nurse") - 0.5
        rows.append([age, hours, job, sex, wage, "yes" if likes > 0 else "no"])
    with open(tmp_path / "people.csv", "w", newline="") as stream:
        csv.writer(stream).writerows([["age", "hours", "job", "sex", "wage", "loan"], *rows])
    return tmp_path / "people.csv"


def test_text_columns_are_one_hot_and_keep_their_names(people: Path) -> None:
    data = load(people, target="loan")
    assert data.columns == (
        "age", "hours", "job=clerk", "job=driver", "job=nurse", "sex=female", "sex=male", "wage",
    )  # fmt: skip
    assert data.categories["job"] == ("job=clerk", "job=driver", "job=nurse")
    jobs = data.train.x[:, 2:5]
    assert set(jobs.flatten().tolist()) == {0.0, 1.0}
    assert bool((jobs.sum(1) == 1).all())
    again = Preprocessing.from_json(Preprocessing.of(data).to_json())
    other = again.apply(load(people, target="loan", standardise=False))
    assert torch.equal(other.test.x, data.test.x)
    assert other.categories == data.categories


def test_new_data_may_lack_a_category_and_not_have_a_new_one(people: Path, tmp_path: Path) -> None:
    own = Preprocessing.of(load(people, target="loan"))
    text = people.read_text()
    fewer, more = tmp_path / "fewer.csv", tmp_path / "more.csv"
    fewer.write_text(text.replace("driver", "clerk"))
    more.write_text(text.replace("driver", "pilot"))
    found = own.apply(load(fewer, target="loan", standardise=False))
    assert not bool(found.train.x[:, 3].any())  # job=driver
    with pytest.raises(ValueError, match="column 'job' of more has the value 'pilot'"):
        own.apply(load(more, target="loan", standardise=False))


def test_for_table_takes_the_columns_own_units(people: Path) -> None:
    data = load(people, target="loan")
    threat = Threat.for_table(
        data, {"age": 5, "job": "any"}, integer=["age"], bounds={"age": (18, None)}
    )
    x = data.test.x
    moved = threat.random(x, torch.Generator().manual_seed(0))
    scale = data.standardisation
    assert scale is not None
    before, after = scale.invert(x), scale.invert(moved)
    change = after[:, 0] - before[:, 0]
    torch.testing.assert_close(change, change.round(), atol=1e-3, rtol=0)
    assert float(change.abs().max()) == pytest.approx(5, abs=1e-3)
    assert float(after[:, 0].min()) >= 18 - 1e-3
    assert torch.equal(moved[:, [1, 5, 6, 7]], x[:, [1, 5, 6, 7]])  # hours, sex, wage
    assert bool((moved[:, 2:5] != x[:, 2:5]).any())
    number = Threat.for_table(data, 0.1, fixed=["sex"])
    moved = number.random(x, torch.Generator().manual_seed(0))
    assert torch.equal(moved[:, 5:7], x[:, 5:7])
    assert float((moved - x)[:, [0, 1, 7]].abs().max()) <= 0.1 + 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": {"agee": 1}}, "no column of people called 'agee' .did you mean 'age'"),
        ({"fixed": ["sexx"]}, "did you mean 'sex'"),
        ({"epsilon": {"sex": 0.1}}, "'sex' is categorical"),
        ({"integer": ["job"]}, "'job' is categorical"),
        ({"integer": ["wage"]}, "'wage' of people is not of whole numbers"),
        ({"bounds": {"sex": (0, 1)}}, "'sex' is categorical"),
        ({"one_hot": [["age", "hours"]]}, "one-hot group is one 1"),
        ({"epsilon": {"age": "a lot"}}, "8/255"),
        ({"epsilon": {"age": "any"}}, "'age' is numeric, so its ε is a number"),
        ({"bounds": {"age": (30, 70)}}, "'age' of people has values from 18 to .*bounds, 30 to 70"),
        ({"bounds": {"hours": (None, 20)}}, "'hours' of .* to 60, .* no bound to 20"),
        ({"fixed": ["age", "hours", "job", "sex", "wage"]}, "positive for some feature"),
    ],
)
def test_wrong_columns_are_one_clear_error(people: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Threat.for_table(load(people, target="loan"), **options)


def test_a_threat_names_its_columns_in_their_units(people: Path) -> None:
    data = load(people, target="loan")
    threat = Threat.for_table(data, {"age": 5, "wage": 2.5, "job": "any"})
    assert threat.columns == "age ±5, wage ±2.5, job any; fixed: hours, sex"
    assert "2 fixed, 1 free" in str(threat)  # columns, not their three features
    assert Threat(**threat.numbers()).columns == threat.columns
    assert data.standardisation is not None
    half = Threat.for_table(data, 0.5, fixed=["sex"])
    assert half.columns.startswith(f"age ±{0.5 * data.standardisation.std[0]:.4g}, hours ±")
    x = torch.zeros(4, len(half.scale))
    x[:, [2, 5]] = 1.0
    network = torch.nn.Linear(len(half.scale), 2)
    result = evaluate(network, x, torch.tensor([0, 1, 0, 1]), threat=half, attacks=["pgd"])
    assert f"Changes: {half.columns}." in summary(result)
    assert "zero it need not" in _expected(half)
    assert "to zero." in _expected(Threat())


def test_images_have_no_columns() -> None:
    with pytest.raises(ValueError, match="no names of columns"):
        read_threat(load("digits"), "linf", "0.1", fixed="sex")
    assert read_threat(load("digits"), "linf", "0.1") == Threat("linf", 0.1)


def test_options_and_recipes_give_the_same_threat(people: Path) -> None:
    names = "{epsilon: {age: 3, job: any}, fixed: [sex], integer: [age], bounds: {age: [18, null]}}"
    settings = [f"data.name={people}", "data.target=loan", f"objective.threat={names}"]
    config = read_recipe("tables/breast-cancer", settings)
    data = build_data(config.data)
    given = read_threat(
        data, "linf", "age=3, job=any", fixed="sex", integer="age", bounds="age=18:"
    )
    assert build_threat(config.objective, data) == given
    wrong = read_recipe("tables/breast-cancer", [*settings[:2], "objective.threat={fixd: [sex]}"])
    with pytest.raises(ValueError, match="did you mean 'fixed'"):
        build_threat(wrong.objective, data)


def test_train_evaluate_and_audit_a_table_with_categories(people: Path, tmp_path: Path) -> None:
    run, invoke = str(tmp_path / "run"), CliRunner().invoke
    threat = "{epsilon: {age: 3, wage: 2, job: any}, integer: [age]}"
    trained = invoke(app, [
        "train", "--recipe", "tables/breast-cancer", "--out", run, "objective.name=pgd",
        f"data.name={people}", "data.target=loan", f"objective.threat={threat}",
        "loop.epochs=15", "loop.batch=32",
    ])  # fmt: skip
    assert trained.exit_code == 0, trained.output
    command = "--epsilon age=3,wage=2,job=any --integer age"
    assert f"taser evaluate --model {run} --examples 200" in trained.output
    own = ["--model", run, *command.split(), "--json"]
    evaluated = invoke(app, [
        "evaluate", *own, "--attacks", "pgd,apgd-ce,spsa", "--no-curve", "--out", f"{run}/e",
    ])  # fmt: skip
    assert evaluated.exit_code == 0, evaluated.output
    record = json.loads((tmp_path / "run/e/evaluation.json").read_text())
    assert record["threat"]["one_hot"] == [[2, 3, 4], [5, 6]]
    assert not [f for f in record["findings"] if "outside" in f["name"]]
    assert record["robust_accuracy"] < record["clean_accuracy"]
    again = ["evaluate", "--model", run, "--attacks", "pgd", "--out", f"{run}/e2"]
    plain = invoke(app, [*again, "--no-curve"])
    assert plain.exit_code == 0, plain.output
    assert "2 free categories" not in plain.output
    assert ", with which the run was trained; --epsilon sets another." in plain.output
    assert "Changes: age ±3, wage ±2, job any; fixed: hours, sex." in plain.output
    assert (
        json.loads((tmp_path / "run/e2/evaluation.json").read_text())["threat"] == record["threat"]
    )
    page = (tmp_path / "run/e2/report.html").read_text()
    assert "fixed: hours, sex" in page
    refused = invoke(app, [*again, "--norm", "l2"])
    assert refused.exit_code == 1
    assert "give --epsilon, too" in refused.output
