"""`regulariser: {name: taser}` alone has to improve a recipe of a user's own."""

from pathlib import Path

import pytest

from taser.training import read_recipe, train

RECIPES = {
    "digits": """
data: {name: digits}
model: {name: cnn, width: 8}
objective: {name: standard, epsilon: 0.15}
optimiser: {rate: 0.003}
loop: {epochs: 8, batch: 64, threads: 1}
""",
    "breast-cancer": """
data: {name: breast-cancer}
model: {name: mlp, width: 64, activation: silu}
objective: {name: standard, epsilon: 0.3}
loop: {epochs: 20, batch: 64, threads: 1}
""",
}


@pytest.mark.parametrize(("name", "gain"), [("digits", 0.3), ("breast-cancer", 0.05)])
def test_taser_alone_makes_a_short_training_more_robust(
    tmp_path: Path, name: str, gain: float
) -> None:
    """Measured: digits 10 to 58 %, breast cancer 74 to 83 % under the validation's PGD."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPES[name])
    plain = train(read_recipe(str(recipe), ["validation.select=last"]), tmp_path / "plain")
    override = ["validation.select=last", "regulariser.name=taser"]
    robust = train(read_recipe(str(recipe), override), tmp_path / "taser")
    assert robust.robust > plain.robust + gain
    assert robust.clean > plain.clean - 0.04
