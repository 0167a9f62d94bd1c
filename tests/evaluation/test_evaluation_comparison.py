"""Models side by side: bold only where the data say so."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from attacks.victims import digits, undefended
from taser.attacks import Threat
from taser.cli import app
from taser.evaluation import Evaluation, compare, evaluate
from taser.evaluation._record import Provenance, Verdicts
from taser.report._evaluation_report import comparison_table, differences_table


def record(
    standing: Tensor, *, data: str = "d", attacks: tuple[str, ...] = ("a", "b")
) -> Evaluation:
    n = len(standing)
    found = Verdicts(standing, torch.zeros(n), torch.full((n,), -1), ("a",))
    return Evaluation(
        Threat(), torch.arange(n), torch.zeros(n, dtype=torch.int64), torch.ones(n).bool(),
        dict.fromkeys(attacks, found), (), Provenance(0, 1, "w", data, {}, {}),
    )  # fmt: skip


def standing(*ranges: range, n: int = 1000) -> Tensor:
    found = torch.zeros(n).bool()
    for rows in ranges:
        found[list(rows)] = True
    return found


def test_a_clear_lead_is_bold_and_a_small_one_is_not() -> None:
    models = {
        "far": record(standing(range(500))),
        "near": record(standing(range(440))),
        "nearer": record(standing(range(436), range(990, 994))),
    }
    rows = compare(models).rows
    assert {name: row["worst case"].best for name, row in rows.items()} == {
        "far": True,
        "near": False,
        "nearer": False,
    }
    assert not any(row["clean"].best for row in rows.values())
    tie = {name: models[name] for name in ("near", "nearer")}
    assert not any(cell.best for row in compare(tie).rows.values() for cell in row.values())
    table = comparison_table(compare(models))
    assert "**50.0** [" in table.markdown()
    assert "<b>50.0</b> [" in table.html()
    assert table.markdown().count("**") == 2 * 3  # attack a, attack b, worst case
    assert "n = 1000" in table.caption


def test_pairs_have_an_interval_and_an_exact_p() -> None:
    models = {"one": record(standing(range(500))), "two": record(standing(range(440)))}
    (row,) = differences_table(compare(models)).rows
    assert row[0] == "one − two"
    assert row[1] == "+6.0"
    assert float(row[3]) < 1e-10


def test_only_what_all_have_in_common_is_compared() -> None:
    models = {
        "one": record(standing(range(10))),
        "two": record(standing(range(10)), attacks=("a",)),
    }
    assert compare(models).columns == ["clean", "a"]


def test_models_without_a_common_attack_are_not_ranked() -> None:
    models = {name: record(standing(range(500)), attacks=(name,)) for name in ("a", "b")}
    with pytest.raises(ValueError, match=r"no attack with the same settings.*a: a; b: b"):
        compare(models)
    other = replace(record(standing(range(9))).provenance, attacks={"a": "a(steps=1)"})
    models = {"one": record(standing(range(9))), "two": replace(models["a"], provenance=other)}
    with pytest.raises(ValueError, match="no attack with the same settings"):
        differences_table(compare(models))


def test_other_examples_or_threats_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="on other examples"):
        compare({"one": record(standing()), "two": record(standing(), data="e")})
    x, y = digits(10)
    small, large = (
        evaluate(undefended(), x, y, threat=Threat("linf", e), attacks=("fgsm",))
        for e in (0.1, 0.2)
    )
    with pytest.raises(ValueError, match="threat"):
        compare({"small": small, "large": large})
    with pytest.raises(ValueError, match="nothing"):
        compare({})


def test_the_command(tmp_path: Path) -> None:
    for name, right in (("plain", 100), ("robust", 200)):
        text = record(standing(range(right))).to_json()
        (tmp_path / name).mkdir()
        (tmp_path / name / "evaluation.json").write_text(text)
    folders = [str(tmp_path / "plain"), str(tmp_path / "robust")]
    said = CliRunner().invoke(app, ["compare", *folders, "--out", str(tmp_path / "out"), "--json"])
    assert said.exit_code == 0, said.output
    assert "robust is more robust than plain by 10.0 points" in said.stderr
    assert json.loads(said.stdout)["differences"][0]["p_value"] < 1e-6
    assert (tmp_path / "out" / "report.html").exists()
    for wrong in (folders[:1], [folders[0], str(tmp_path)]):
        refused = CliRunner().invoke(app, ["compare", *wrong])
        assert refused.exit_code == 1
        assert "taser evaluate" in refused.output
