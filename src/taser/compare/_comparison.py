"""A queue's finished runs as records: small enough for a repository, whole enough to go on."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from taser._files import write_atomically
from taser._tensors import default_device
from taser.attacks import Threat
from taser.data import Dataset
from taser.scores import DenoisingScore
from taser.training import Config, load_trained, read_recipe, train
from taser.training._build import build_data, build_score
from taser.training._config import RegulariserConfig
from taser.training._result import read_data_config

from ._comparison_config import best, job_name
from ._diagnostics import audited, diagnose, plain_network
from ._jobs import Progress, Queue
from ._run_results import corruption_accuracy, judged

FORM = ("form", "operator", "center", "timestep", "sigma")
"""What makes the penalty of one run another than that of its other seeds."""


def do(folder: Path, job: dict[str, Any], progress: Progress | None) -> dict[str, Any]:
    """Train one run and judge it, or judge another's network; all goes on where it stopped."""
    if "judged" in job:
        return _judge_again(folder, job, progress)
    settings = chosen(Queue(folder.parent), job["choices"])
    overrides = [*job["overrides"], *settings, *job.get("candidate", [])]
    if "start" in job:
        overrides.append(f"model.weights={_start(folder.parent / job['start'])}")
    config = read_recipe(job["recipe"], overrides)
    _check_form(folder.parent, job, config.regulariser)
    result = train(config, folder / "run", report=progress)
    dataset = build_data(config.data)
    batch = min(config.loop.batch, len(dataset.train))
    found = {
        **{key: job[key] for key in ("method", "variant", "seed")},
        "seconds_per_example": result.seconds / (result.steps * batch),
        "best_step": result.best_step, "steps": result.steps,
        "clean": result.clean, "robust": result.robust,
    }  # fmt: skip
    if "candidate" in job:
        return {**found, "candidate": job["candidate"]}
    model = load_trained(folder / "run").to(default_device())
    records = judged(model, folder, dataset.test, job["evaluation"], progress)
    closer = _closer(model, folder, job, config, dataset, progress)
    return {**found, "finetuned": job["finetuned"], "chosen": settings, "records": records,
            "closer": closer}  # fmt: skip


def _check_form(queue: Path, job: dict[str, Any], ours: RegulariserConfig) -> None:
    """Raise if an earlier run of the same row had another penalty: a recipe may have changed.

    What a search tries out is to differ, of course.
    """
    kind = [job.get(key) for key in ("method", "variant", "finetuned")]
    for path in sorted(queue.glob("*/job.json")):
        kept = path.parent / "run" / "config.yaml"
        other = json.loads(path.read_text())
        if [other.get(key) for key in ("method", "variant", "finetuned")] != kind:
            continue
        if not (path.parent / "result.json").exists() or not kept.exists():
            continue
        theirs = read_recipe(kept).regulariser
        tried = {o.partition("=")[0] for each in (job, other) for o in each.get("candidate", [])}
        alike = [name for name in FORM if f"regulariser.{name}" not in tried]
        for name in alike if ours.name == theirs.name == "taser" else ():
            if getattr(ours, name) != getattr(theirs, name):
                raise ValueError(
                    f"{path.parent.name} had regulariser.{name}={getattr(theirs, name)}, and this "
                    f"run of the same row would have {getattr(ours, name)}: the recipe has changed "
                    "since, so choose another folder"
                )


def chosen(queue: Queue, choices: list[dict[str, Any]]) -> list[str]:
    """The overrides that won the searches which a job waits for."""
    overrides: list[str] = []
    floor = 0.0
    for choice in choices:
        failed = queue.failures().keys() & set(choice["among"])  # a rate at which it diverged
        if len(failed) == len(choice["among"]):
            raise RuntimeError(f"all of its searches failed: {', '.join(sorted(failed))}")
        tried = [queue.needed(name) for name in choice["among"] if name not in failed]
        allowed = floor - choice["clean_cost"] if choice["clean_cost"] is not None else 0.0
        winner = best(tried, floor=allowed, measure=choice["measure"])
        overrides += winner["candidate"]
        floor = winner["clean"]
    return overrides


def _start(home: Path) -> Path:
    """The best weights of the run that this one goes on from."""
    if not (home / "run" / "result.json").exists():
        Queue(home.parent).needed(home.name)
    return home / "run" / "best.safetensors"


def _judge_again(folder: Path, job: dict[str, Any], progress: Progress | None) -> dict[str, Any]:
    """The best weights of a finished run under a threat that its training did not know."""
    Queue(folder.parent).needed(job["judged"])
    home = folder.parent / job["judged"] / "run"
    if not (home / "best.safetensors").exists():
        raise ValueError(f"the weights of {job['judged']} are gone: train it in another folder")
    test = build_data(read_data_config(home)).test
    model = load_trained(home).to(default_device())
    records = judged(model, folder, test, job["evaluation"], progress)
    return {"judged": job["judged"], "records": records}


def _closer(
    model: nn.Module, folder: Path, job: dict[str, Any], config: Config, dataset: Dataset,
    progress: Progress | None,
) -> dict[str, Any]:  # fmt: skip
    """What the report shows of the run beside its accuracies."""
    test, asked = dataset.test, job["evaluation"]
    threat = Threat(asked["norm"], asked["epsilon"], *test.box)
    found = diagnose(model, test, threat, _reference_score(config, dataset), progress)
    corrupted = corruption_accuracy(model, test, asked["n"], progress)
    if corrupted is not None:
        found["corrupted"] = corrupted
    if job["audited"]:
        plain = plain_network(Queue(folder.parent), job["seed"])
        found["audit"] = audited(model, test, threat, job["audited"], plain, progress)
    return found


def _reference_score(config: Config, dataset: Dataset) -> DenoisingScore | None:
    """The same for all variants of a study: what ships for the data, else what the run has."""
    for regulariser in (RegulariserConfig(), config.regulariser):
        with suppress(ValueError):  # none ships, or the recipe names none
            score = build_score(regulariser, dataset)
            if isinstance(score, DenoisingScore):
                return score
    return None


RECORDS = ("job.json", "result.json", "run/config.yaml", "run/log.jsonl")
WEIGHTS = ("run/best.safetensors", "run/model.json", "run/result.json")


def keep(queue: Queue, to: Path) -> list[str]:
    """Copy what every finished run was asked and what came of it into the queue at `to`.

    Weights are left behind, but for the networks that other runs of the queue begin with or borrow
    attacks from. Reports can be made from the copy, and a study that is started there goes on
    with what is missing. Returns the names of the runs that were copied.
    """
    finished = [name for name in queue.names() if queue.finished(name)]
    if not finished:
        raise ValueError(f"no run in {queue.folder} is finished yet")
    needed = _needed(queue)
    for name in finished:
        for file in (*RECORDS, *(WEIGHTS if name in needed else ())):
            source = queue.folder / name / file
            if source.exists():
                content = source.read_bytes()
                if source.suffix == ".yaml":  # weights and scores of the study, named within it
                    for home in (queue.folder, queue.folder.parent):
                        content = content.replace(f"{home}/".encode(), b"")
                write_atomically(to / name / file, content)
    return finished


def _needed(queue: Queue) -> set[str]:
    """The runs whose weights others ask for: to start from, or for attacks that transfer."""
    jobs = [queue.job(name) for name in queue.names()]
    starts = {job["start"] for job in jobs if "start" in job}
    return starts | {job_name("standard", "off", job["seed"]) for job in jobs if job.get("audited")}
