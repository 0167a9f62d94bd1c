"""The built wheel holds all that the package needs, away from the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import taser

ROOT = Path(__file__).parents[1]
SHOWN = """
import taser
assert taser.__file__.startswith(UNPACKED), taser.__file__
from taser.training import read_recipe
from taser.training._recipes import shipped_recipes
from taser.compare import read_comparison
for name in shipped_recipes():
    if name.startswith("compare/"):
        read_comparison(name.removeprefix("compare/"))
    else:
        read_recipe(name)
for name in ("digits", "cifar10", "fashion-mnist"):
    taser.scores.pretrained(name)
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "."]
    subprocess.run([*build, str(ROOT)], check=True, cwd=folder, timeout=170)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.startswith(f"taser_robust-{taser.__version__}-")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_recipes_and_scores_are_inside(unpacked: Path, tmp_path: Path) -> None:
    code = SHOWN.replace("UNPACKED", repr(str(unpacked)))
    run_with(unpacked, tmp_path, "-c", code)


def test_the_command_runs_from_it(unpacked: Path, tmp_path: Path) -> None:
    short = ["loop.epochs=1", "model.width=4", "data.examples=200"]
    recipe = ["train", "--recipe", "digits/standard", "--taser", "--out", "run"]
    run_with(unpacked, tmp_path, "-m", "taser", *recipe, *short)
    assert (tmp_path / "run" / "result.json").exists()


def run_with(unpacked: Path, folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    subprocess.run(
        [sys.executable, *arguments], check=True, cwd=folder, env=environment, timeout=170
    )
