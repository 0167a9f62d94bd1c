"""The examples do what they say, at the size they say."""

import importlib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_two_lines_lower_the_residual_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least ten times lower on unseen digits, at an accuracy within two points."""
    monkeypatch.syspath_prepend(EXAMPLES)
    own_loop = importlib.import_module("own_loop")
    plain, taser = own_loop.train(0.0), own_loop.train(1e-4)
    assert plain["accuracy"] > 0.95
    assert plain["variance"] > 10 * taser["variance"] > 0
    assert taser["accuracy"] > plain["accuracy"] - 0.02


def test_a_table_is_classified_more_robustly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under attack at least ten points more are right, on clean rows at most one point fewer."""
    monkeypatch.syspath_prepend(EXAMPLES)
    tabular = importlib.import_module("tabular")
    plain, taser = tabular.train(0.0), tabular.train(1e-2)
    assert plain["clean"] > 0.93
    assert taser["clean"] > plain["clean"] - 0.01
    assert taser["attacked"] > plain["attacked"] + 0.1


def test_a_regression_errs_less_under_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    regression = importlib.import_module("regression")
    plain, taser = regression.train(0.0), regression.train(0.1)
    assert taser["clean"] < plain["clean"] + 0.02 < 0.6
    assert taser["attacked"] < 0.95 * plain["attacked"]
