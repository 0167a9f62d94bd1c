"""The examples do what they say, at the size they say."""

import ast
import importlib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_is_short_and_says_how_to_run_it(script: Path) -> None:
    text = script.read_text()
    assert len(text.splitlines()) < 100
    assert f"python examples/{script.name}" in (ast.get_docstring(ast.parse(text)) or "")


def test_two_lines_lower_the_residual_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least ten times lower on unseen digits, at an accuracy within two points."""
    monkeypatch.syspath_prepend(EXAMPLES)
    own_loop = importlib.import_module("own_loop")
    plain, taser = own_loop.train(0.0), own_loop.train(1e-4)
    assert plain["accuracy"] > 0.95
    assert plain["variance"] > 10 * taser["variance"] > 0
    assert taser["accuracy"] > plain["accuracy"] - 0.02


def test_two_lines_make_digits_robust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under attack at least thirty points more are right, at an accuracy within four points."""
    monkeypatch.syspath_prepend(EXAMPLES)
    robust_loop = importlib.import_module("robust_loop")
    plain, taser = robust_loop.train(0.0, epochs=4), robust_loop.train(0.3, epochs=4)
    assert taser["clean"] > plain["clean"] - 0.04
    assert taser["attacked"] > plain["attacked"] + 0.3


def test_a_table_is_classified_more_robustly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under attack at least ten points more are right, on clean rows at most one point fewer."""
    monkeypatch.syspath_prepend(EXAMPLES)
    tabular = importlib.import_module("tabular")
    plain, taser = tabular.train(0.0), tabular.train(1.0)
    assert plain["clean"] > 0.93
    assert taser["clean"] > plain["clean"] - 0.01
    assert taser["attacked"] > plain["attacked"] + 0.2


def test_a_regression_errs_less_under_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    regression = importlib.import_module("regression")
    plain, taser = regression.train(0.0), regression.train(1.0)
    assert taser["clean"] < plain["clean"] + 0.02 < 0.6
    assert taser["attacked"] < 0.95 * plain["attacked"]


def test_fine_tuning_keeps_the_answers_and_gains_under_attack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    finetune = importlib.import_module("finetune")
    model = finetune.finished()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain, tuned = (finetune.judge(finetune.finetune(model, lam), model) for lam in (0.0, 0.1))
    assert tuned["agreement"] > 0.97
    assert tuned["clean"] > plain["clean"] - 0.01
    assert tuned["attacked"] > plain["attacked"] + 0.1
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


def test_the_audit_detects_hidden_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under PGD the quantised network looks better; the audit does not trust it."""
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("audit")
    honest, quantised = example.models().values()
    assert example.claimed(quantised) > example.claimed(honest) + 0.3
    assert example.ask(honest, examples=60, queries=20).verdict == "trust"
    result = example.ask(quantised, examples=60, queries=20)
    assert result.verdict == "do not trust"
    assert "gradients exist" in [check.name for check in result.failed]


def test_the_score_detects_out_of_distribution_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Better than the residual, as the example states."""
    monkeypatch.syspath_prepend(EXAMPLES)
    table = importlib.import_module("out_of_distribution").detect()
    assert len(table) == 3
    for found in table.values():
        assert found["score norm"] > 0.95
        assert found["score norm"] > found["Stein residual, centred"]


def test_a_diffusion_model_becomes_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("diffusers")
    monkeypatch.syspath_prepend(EXAMPLES)
    found = importlib.import_module("diffusion_score").main()
    assert found["sigma"] == pytest.approx(0.088, abs=1e-3)
    assert found["penalty"] > 0
