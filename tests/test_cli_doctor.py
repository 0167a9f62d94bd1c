"""`taser doctor` says what is here and what is missing."""

import json
import tomllib
from pathlib import Path

import pytest

from taser.cli import _doctor as installation
from test_cli import run


def test_all_that_is_needed_is_here(tmp_path: Path) -> None:
    said = run("doctor", "--root", tmp_path)
    for word in ("torch", "taser data fetch cifar10", "threads", "compile"):
        assert word in said
    assert "All that is needed is here" in said


def test_the_cache_is_weighed(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "x_train.npy").write_bytes(b"12345")  # not whole
    found = json.loads(run("doctor", "--json", "--root", tmp_path))["cache"]
    assert found["folder"] == str(tmp_path)
    assert found["bytes"] == 5
    assert found["holds"]["cifar10"] == {"ready": False, "bytes": 5}


@pytest.mark.parametrize("version", [None, "2.5.9"])
def test_what_is_missing_or_old_is_an_error(
    version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = installation._version
    monkeypatch.setattr(
        installation, "_version", lambda name: version if name == "torch" else known(name)
    )
    said = run("doctor", code=1)
    assert f"{'torch':13} {version or '–'}  MISSING: >=2.6" in said
    found = json.loads(run("doctor", "--json", code=1))
    assert not found["ok"]
    assert found["device"] is None


def test_a_missing_extra_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    known = installation._version
    monkeypatch.setattr(
        installation, "_version", lambda name: None if name == "diffusers" else known(name)
    )
    assert "pip install 'diffusers>=" in run("doctor")


def test_every_extra_of_the_package_is_explained() -> None:
    """Those of the project's file, which may be newer than the installation."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) - {"dev", "docs"} == set(installation.EXTRAS)


@pytest.mark.parametrize(
    ("found", "enough"),
    [("2.13.0+cpu", True), ("2.6", True), ("2.7.0rc1", True), ("2.10", True), ("2.5.9", False)],
)
def test_versions_are_compared_as_numbers(
    found: str, enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "_version", lambda _: found)
    (torch,) = (e for e in installation.examine()["needed"] if e["package"] == "torch")
    assert torch["wanted"] == ">=2.6"
    assert torch["ok"] == enough
