"""A run's log and result, and functions that read its folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from torch import nn

from taser._files import read_json, write_atomically
from taser._names import refuse_code
from taser._settings import from_mapping, read_yaml

from ._build import build_model
from ._config import Config, DataConfig, ObjectiveConfig
from ._recipes import read_recipe, to_yaml


@dataclass(frozen=True)
class Result:
    """A run's folder and its best validation (regression: negated mean squared errors)."""

    folder: Path
    steps: int
    best_step: int
    clean: float
    robust: float
    seconds: float


class Log:
    """log.jsonl and a tracker; a resumed run removes lines after its last checkpoint.

    track: one of Accelerate's trackers; TensorBoard's files are in folder/tensorboard.
    """

    def __init__(
        self, folder: Path, from_step: int, *, track: str | None = None, enabled: bool = True
    ) -> None:
        self.path, self.enabled = folder / "log.jsonl", enabled
        self.trackers: list[Any] = []
        if not enabled:
            return
        kept = [json.dumps(line) for line in read_log(folder) if line["step"] <= from_step]
        write_atomically(self.path, "".join(f"{line}\n" for line in kept))
        if track is not None:
            self.trackers = start_trackers(track, folder, from_step)

    def write(self, step: int, kind: str, numbers: dict[str, float]) -> None:
        """Append one line."""
        if self.enabled:
            with self.path.open("a") as stream:
                stream.write(json.dumps({"step": step, "kind": kind, **numbers}) + "\n")
        for tracker in self.trackers:
            tracker.log({f"{kind}/{name}": value for name, value in numbers.items()}, step)

    def close(self) -> None:
        """End the tracker's run."""
        for tracker in self.trackers:
            tracker.finish()


def start_trackers(track: str, folder: Path, from_step: int = -1) -> list[Any]:
    """One of Accelerate's trackers, with `log(numbers, step)` and `finish()`."""
    if track not in (there := [str(kind) for kind in get_available_trackers()]):
        ready = f"there are {', '.join(there)}" if there else "there is none"
        raise ImportError(f"the tracker {track} needs a package that is missing; {ready}")
    accelerator = Accelerator(log_with=track, project_dir=folder)
    purge = {"tensorboard": {"purge_step": from_step + 1}}
    accelerator.init_trackers("tensorboard" if track in purge else "taser", None, purge)
    return accelerator.trackers


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log up to the first damaged line; a crash can truncate the last."""
    path, lines = folder / "log.jsonl", []
    for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
            lines.append({**line, "step": int(line["step"])})
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            break
    return lines


def check_same_run(config: Config, out: Path) -> None:
    """Raise if `out` holds a run with another configuration; the error lists the differences."""
    path = out / "config.yaml"
    if not path.exists():
        files = ("checkpoints", "model.json", "data.json", "log.jsonl", "best.safetensors")
        if left := [name for name in files if (out / name).exists()]:
            what = f"{out} holds {left[0]} without a run's config.yaml, so it cannot be resumed"
            raise ValueError(f"{what}: choose another folder, or remove this one")
        return
    try:
        written = read_recipe(path, trust_code=True)  # to compare it: nothing is imported
        before, now = (yaml.safe_load(to_yaml(one)) for one in (written, config))
    except ValueError as error:
        found = f"{out} holds a run of another version of taser ({error})"
        raise ValueError(f"{found}: choose another folder") from None
    for free in ("threads", "save_minutes", "device", "track"):  # these change no weights
        before["loop"].pop(free), now["loop"].pop(free)
    changed = [
        f"{section}.{key} was {value!r}, is {now[section][key]!r}"
        for section, keys in before.items()
        for key, value in keys.items()
        if value != now[section][key]
    ]
    if changed:
        found = f"{out} holds a run of another configuration ({'; '.join(changed)})"
        raise ValueError(f"{found}: choose another folder, or remove this one")


def read_threat_config(folder: Path) -> ObjectiveConfig:
    """The threat in a run's config.yaml, as an objective with nothing else."""
    path = folder / "config.yaml"
    given = read_yaml(path).get("objective", {})
    if isinstance(given, dict):  # other keys may be from another version
        given = {key: given[key] for key in ("norm", "epsilon", "threat") if key in given}
    return from_mapping(Config, {"objective": given}, str(path)).objective


def read_data_config(folder: Path) -> DataConfig:
    """The data section of a run's config.yaml; other sections may be from another version."""
    path = folder / "config.yaml"
    return from_mapping(Config, {"data": read_yaml(path).get("data", {})}, str(path)).data


HUB = "hub:"
PARTS = ["*.safetensors", "model.json", "data.json", "config.yaml", "README.md"]


def run_folder(name: str) -> Path:
    """The folder of a run; "hub:user/name" or "hub:user/name@revision" is fetched into a cache.

    From the Hugging Face Hub come safetensors and descriptions only: no code, nothing pickled.
    """
    if not name.startswith(HUB):
        return Path(name)
    from huggingface_hub import snapshot_download

    repo, _, revision = name.removeprefix(HUB).partition("@")
    try:
        folder = Path(str(snapshot_download(repo, revision=revision or None, allow_patterns=PARTS)))
    except (ValueError, OSError) as error:  # no such repository, a bad name, no network
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"{name} could not be fetched from the Hub: {why}") from None
    if not (folder / "model.json").is_file():
        raise ValueError(f"{name} has no model.json: only what `taser export` wrote can be loaded")
    return folder


def load_trained(
    folder: Path | str, which: Literal["best", "last"] | Path = "best", *, trust_code: bool = False
) -> nn.Module:
    """The network of a run, in evaluation mode, with its best or last weights, or a file's.

    folder: written by `taser train` or `taser export`, or "hub:user/name". A network from the
    user's code is imported only with `trust_code`.
    """
    folder = run_folder(str(folder))
    if not (folder / "model.json").is_file():
        raise ValueError(f"{folder} is not the folder of a training run")
    weights = which if isinstance(which, Path) else folder / f"{which}.safetensors"
    if which == "best" and not weights.exists():
        weights = folder / "model.safetensors"  # written by `taser export`
    if not weights.exists():
        raise ValueError(f"the run in {folder} has no weights {which} yet")
    path = folder / "model.json"
    architecture = read_json(path, "name", "classes", "shape", "options")
    refuse_code(str(architecture["name"]), str(path), trust_code=trust_code)
    try:
        return build_model(architecture, weights)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not describe a network: {error}") from error
