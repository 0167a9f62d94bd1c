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
