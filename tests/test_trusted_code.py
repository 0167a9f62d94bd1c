"""Code that a file names is never imported, unless the user says so on the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taser.compare import _comparison, read_comparison
from taser.compare._comparison import run_job
from taser.training import load_trained, read_recipe
from test_cli import run

OWN = """
from pathlib import Path
from torch import nn

Path(__file__).with_suffix(".ran").touch()

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def score():
    import taser
    return taser.scores.from_edm(taser.scores.pretrained("digits"), 0.1, coordinates="[0,1]")
"""
SMALL = """
data: {name: digits, examples: 40}
loop: {epochs: 1, batch: 20}
validation: {steps: 1, examples: 20}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


@pytest.fixture
def ran(own: Path) -> Callable[[], bool]:
    return own.with_suffix(".ran").exists


def recipe(own: Path, text: str) -> Path:
    path = own.with_name("recipe.yaml")
    path.write_text(SMALL + text)
    return path


def test_the_command_of_the_issue_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    network = {"name": "os:system", "classes": 10, "shape": [1, 8, 8]}
    content = {**network, "options": {"command": f"touch {marker}"}}
    (tmp_path / "model.json").write_text(json.dumps(content))
    (tmp_path / "best.safetensors").touch()
    for command in ("evaluate", "audit", "shift"):
        said = run(command, "--model", tmp_path, "--data", "digits", code=1)
        assert "model.json names code, os:system, which would be imported and run" in said
        assert "--trust-code" in said
    with pytest.raises(ValueError, match="trust_code=True"):
        load_trained(tmp_path)
    assert not marker.exists()


def test_a_package_of_diffusion_models_is_no_network(tmp_path: Path) -> None:
    """Only a score may be named diffusers:NAME."""
    path = recipe(tmp_path / "own.py", "model: {name: 'diffusers:DiffusionPipeline'}")
    with pytest.raises(ValueError, match=r"model\.name in .* names code"):
        read_recipe(path)
    assert read_recipe(recipe(tmp_path / "own.py", "regulariser: {score: 'diffusers:folder'}"))


@pytest.mark.parametrize("key", ["model: {name: OWN:build}", "regulariser: {score: OWN:score}"])
def test_a_recipe_that_names_code_is_refused(
    own: Path, ran: Callable[[], bool], key: str, tmp_path: Path
) -> None:
    path = recipe(own, key.replace("OWN", str(own)))
    for more in ((), ("--dry-run",), ("loop.seed=1",)):
        said = run("train", "--recipe", path, "--out", tmp_path / "run", *more, code=1)
        assert "in " in said
        assert "names code" in said
    assert not ran()
    assert read_recipe(path, trust_code=True)
    assert read_recipe(path, [f"model={{name: '{own}:build'}}", "regulariser={}"])


def test_named_on_the_command_line_or_trusted_it_runs(
    own: Path, ran: Callable[[], bool], tmp_path: Path
) -> None:
    out, quick = tmp_path / "run", ("--attacks", "noise", "-n", "20", "--no-curve")
    run("train", "--recipe", recipe(own, ""), f"model.name={own}:build", "--out", out)
    assert ran()
    own.with_suffix(".ran").unlink()
    run("train", "--recipe", out / "config.yaml", "--out", tmp_path / "two", "--trust-code")
    assert ran()
    run("train", "--recipe", recipe(own, ""), f"model.name={own}:build", "--out", out)  # resumed
    own.with_suffix(".ran").unlink()
    evaluate = ("evaluate", "--model", out, *quick, "--out", tmp_path / "evaluated")
    assert "names code" in run(*evaluate, code=1)
    assert not ran()
    run(*evaluate, "--trust-code")
    assert ran()


def test_a_comparison_and_its_jobs(own: Path, ran: Callable[[], bool], tmp_path: Path) -> None:
    family = tmp_path / "family.yaml"
    family.write_text(f"{SMALL}\nmethods:\n  standard: {{model: {{name: '{own}:build'}}}}\n")
    comparison = tmp_path / "comparison.yaml"
    comparison.write_text(f"recipe: {family}\nmethods: [standard]\nvariants: {{'off': []}}\n")
    command = ("compare", comparison, "--out", tmp_path / "out")
    assert "names code" in run(*command, code=1)
    config = read_comparison(comparison, trust_code=True)
    (job,) = config.runs().values()
    with pytest.raises(ValueError, match="names code"):
        run_job(tmp_path / "job", job, None)
    job = {**job, "recipe": "digits/standard", "overrides": [f"regulariser.score={own}:score"]}
    with pytest.raises(ValueError, match=r"regulariser\.score in .*job\.json names code"):
        run_job(tmp_path / "job", job, None)
    assert not ran()


@pytest.mark.parametrize("trust", [True, False])
def test_trust_reaches_the_processes_of_a_comparison(
    trust: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(_comparison, "run_all", lambda *given, **_: seen.append(given[2]))
    with pytest.raises(ValueError, match="is finished yet"):
        _comparison.compare("demo", tmp_path, trust_code=trust)
    assert seen[0].keywords == {"trust_code": trust}
