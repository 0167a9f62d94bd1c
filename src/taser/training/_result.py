"""What a run leaves in its folder, and how that is read again."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from torch import nn

from taser._settings import from_mapping

from ._build import Architecture
from ._config import Config, DataConfig
from ._recipes import read_recipe, to_yaml


@dataclass(frozen=True)
class Result:
    """Where the run is, and what its best checkpoint reached on the validation examples.

    seconds: of training, over all sessions. For regression clean and robust are negated mean
    squared errors.
    """

    folder: Path
    steps: int
    best_step: int
    clean: float
    robust: float
    seconds: float


def check_same_run(config: Config, out: Path) -> None:
    """Refuse to go on with a folder that holds another run, and say in what it differs."""
    path = out / "config.yaml"
    if not path.exists():
        return
    try:
        before, now = (yaml.safe_load(to_yaml(one)) for one in (read_recipe(path), config))
    except ValueError as error:
        raise ValueError(
            f"{out} holds a run of another version of taser ({error}): choose another folder"
        ) from None
    for free in ("threads", "save_minutes", "device"):  # they change no weight
        before["loop"].pop(free), now["loop"].pop(free)
    changed = [
        f"{section}.{key} was {value!r}, is {now[section][key]!r}"
        for section, keys in before.items()
        for key, value in keys.items()
        if value != now[section][key]
    ]
    if changed:
        raise ValueError(
            f"{out} holds a run of another configuration ({'; '.join(changed)}): "
            "choose another folder, or remove this one"
        )


def read_data_config(folder: Path) -> DataConfig:
    """Which data a run was trained on; its other settings may be another version's."""
    path = folder / "config.yaml"
    data = yaml.safe_load(path.read_text())["data"]
    return from_mapping(Config, {"data": data}, str(path)).data


def load_trained(folder: Path | str, which: Literal["best", "last"] | Path = "best") -> nn.Module:
    """The network of a run, in evaluation mode, with its best or last weights, or a file's."""
    folder = Path(folder)
    try:
        entries = json.loads((folder / "model.json").read_text())
    except FileNotFoundError:
        raise ValueError(f"{folder} is not the folder of a training run") from None
    weights = which if isinstance(which, Path) else folder / f"{which}.safetensors"
    if not weights.exists():
        raise ValueError(f"the run in {folder} has no weights {which} yet")
    entries["shape"] = tuple(entries["shape"])
    return Architecture(**entries).build(weights)
