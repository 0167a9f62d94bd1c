"""Runs so small that a test can afford them."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from taser._settings import from_mapping
from taser.training import Config
from taser.training._build import set_up
from taser.training._run_folder import read_log

BASE: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "examples": 128, "augment": "none"},
    "model": {"name": "cnn", "width": 4, "activation": "silu"},
    "objective": {"name": "standard", "epsilon": 0.1, "steps": 2, "step_size": 0.05},
    "regulariser": {"ramp": 0.0},
    "validation": {"examples": 32, "steps": 1},
    # One thread: several would spend their time waiting for each other.
    "loop": {"epochs": 1, "batch": 64, "device": "cpu", "threads": 1},
}
MLP = {"name": "mlp", "width": 8}


def small(**sections: dict[str, Any]) -> Config:
    """Two steps on a few digits, but for the keys that are given: small(loop={"epochs": 2})."""
    names = {*BASE, *sections}
    content = {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in names}
    return from_mapping(Config, content, "small")


def weights(out: Path, which: str = "last") -> dict[str, Tensor]:
    return load_file(out / f"{which}.safetensors")


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """Equal to the last bit."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def initial(config: Config) -> dict[str, Tensor]:
    """The weights that a run begins with."""
    return set_up(config).learner.module.state_dict()


def lines(out: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in read_log(out) if line["kind"] == kind]
