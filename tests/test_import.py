"""`import taser` is light: what is heavy is imported by what needs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import taser

HEAVY = {
    "accelerate", "diffusers", "lightning", "matplotlib", "pandas", "pyarrow", "pyautoattack",
    "scipy", "sklearn", "tensorboard", "torchvision", "transformers",
}  # fmt: skip


def imported_by(code: str) -> set[str]:
    """The packages that a fresh process has imported after `code`."""
    listing = "import json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in json.loads(done.stdout)}


def test_the_whole_public_face_imports_nothing_heavy() -> None:
    heavy = ("training", "compare", "report")  # the places of accelerate and matplotlib
    names = [name for name in taser.__all__ if name not in heavy]
    assert "SteinPenalty" in names
    beyond = imported_by(f"import taser\nfor name in {names}: getattr(taser, name)")
    assert "torch" in beyond  # otherwise nothing was imported at all
    assert not HEAVY & beyond


def test_the_command_line_does_not_wait_for_torch() -> None:
    assert not (HEAVY | {"torch", "numpy"}) & imported_by("import taser, taser.cli")


def test_the_listing_can_fail() -> None:
    assert "sklearn" in imported_by("import sklearn.datasets")


def test_public_names_are_what_they_say() -> None:
    assert set(taser.__all__) <= set(dir(taser))
    for name in taser.__all__:
        assert getattr(taser, name).__name__.removeprefix("taser.") == name
    with pytest.raises(AttributeError, match="SteinPenalti"):
        _ = taser.SteinPenalti
    with pytest.raises(ImportError):
        exec("from taser import nothing")


def test_types_are_shipped() -> None:
    assert (Path(taser.__file__).parent / "py.typed").exists()
