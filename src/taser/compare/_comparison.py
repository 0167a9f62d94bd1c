"""Train and evaluate every run of a comparison."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from taser._files import Progress
from taser._tensors import default_device
from taser.data import Dataset
from taser.scores import DenoisingScore
from taser.training import Config, load_trained, read_recipe, train
from taser.training._build import build_data, build_score
from taser.training._config import RegulariserConfig
from taser.training._run_folder import read_data_config

from ._comparison_config import ComparisonConfig, Job, best, read_comparison
from ._diagnostics import diagnose, evaluate_run
from ._jobs import Queue, run_workers
from ._run_results import Results, read_results

FORM = ("form", "operator", "center", "timestep", "sigma")
"""The keys of a penalty in which the seeds of one row must agree."""


def compare(
    config: ComparisonConfig | Path | str,
    out: Path | str,
    *,
    jobs: int = 1,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Results:
    """Train and evaluate methods × variants × seeds in `jobs` processes; started again, it goes on.

    config: a configuration, its YAML file, or the name of a shipped one such as "digits"; threads:
    of each process, by default an equal share of the cores. The runs are in out/runs.
    """
    config = config if isinstance(config, ComparisonConfig) else read_comparison(config)
    out = Path(out)
    queue, wanted = Queue(out / "runs"), config.jobs()
    queue.add(wanted)
    each = threads or max(1, (os.cpu_count() or 1) // jobs)
    command = ["compare", str(out), "--join"]
    run_workers(command, queue, jobs, each, list(wanted), progress)
    return read_results(out)


def open_queue(out: Path | str) -> Queue:
    """The queue of a comparison that was started in `out`."""
    queue = Queue(Path(out) / "runs")
    if not queue.names():
        raise ValueError(
            f"there are no runs in {out}: `taser compare RECIPE --out {out}` adds them"
        )
    return queue


def join(out: Path | str, *, progress: Progress | None = None) -> None:
    """Help with the runs of a comparison that no other worker has; any number may join."""
    queue = open_queue(out)
    queue.work(run_job, queue.names(), progress)


def run_job(folder: Path, job: Job, progress: Progress | None) -> dict[str, Any]:
    """Train, evaluate and diagnose one run, or evaluate another run's network; resumable."""
    queue = Queue(folder.parent)
    if "judged" in job:
        return _evaluate_again(queue, folder, job, progress)
    chosen = chosen_overrides(queue, job["choices"])
    overrides = [*job["overrides"], *chosen, *job.get("candidate", [])]
    if "start" in job:
        home = queue.folder / job["start"] / "run"
        if not (home / "result.json").exists():
            queue.required_result(job["start"])
        overrides.append(f"model.weights={home / 'best.safetensors'}")
    config = read_recipe(job["recipe"], overrides)
    _check_same_penalty(queue, job, config.regulariser)
    trained = train(config, folder / "run", report=progress)
    dataset = build_data(config.data)
    batch = min(config.loop.batch, len(dataset.train))
    result = {
        **{key: job[key] for key in ("method", "variant", "seed")},
        "seconds_per_example": trained.seconds / (trained.steps * batch),
        "best_step": trained.best_step, "steps": trained.steps,
        "clean": trained.clean, "robust": trained.robust,
    }  # fmt: skip
    if "candidate" in job:
        return {**result, "candidate": job["candidate"]}
    model = load_trained(folder / "run").to(default_device())
    return {
        **result, "finetuned": job["finetuned"], "chosen": chosen,
        "evaluations": evaluate_run(model, folder, dataset.test, job["evaluation"], progress),
        "diagnostics": diagnose(
            model, dataset.test, job, queue.folder, _reference_score(config, dataset), progress
        ),
    }  # fmt: skip


def _evaluate_again(
    queue: Queue, folder: Path, job: Job, progress: Progress | None
) -> dict[str, Any]:
    """Evaluate the best weights of a finished run under an unseen threat."""
    queue.required_result(job["judged"])
    home = queue.folder / job["judged"] / "run"
    if not (home / "best.safetensors").exists():
        raise ValueError(f"the weights of {job['judged']} are gone: train it in another folder")
    test = build_data(read_data_config(home)).test
    model = load_trained(home).to(default_device())
    evaluations = evaluate_run(model, folder, test, job["evaluation"], progress)
    return {"judged": job["judged"], "evaluations": evaluations}


def chosen_overrides(queue: Queue, choices: list[dict[str, Any]]) -> list[str]:
    """The overrides that won the searches which a job needs."""
    overrides: list[str] = []
    clean = 0.0  # that of the winner for "off"
    for choice in choices:
        failed = queue.failures().keys() & set(choice["among"])  # such as a rate that diverged
        if len(failed) == len(choice["among"]):
            raise RuntimeError(f"all of its searches failed: {', '.join(sorted(failed))}")
        tried = [queue.required_result(name) for name in choice["among"] if name not in failed]
        floor = clean - choice["clean_cost"] if choice["clean_cost"] is not None else 0.0
        winner = best(tried, floor=floor, measure=choice["measure"])
        overrides += winner["candidate"]
        clean = winner["clean"]
    return overrides


def _check_same_penalty(queue: Queue, job: Job, penalty: RegulariserConfig) -> None:
    """Raise if a finished run of the same row had another penalty: a recipe may have changed."""

    def row(job: Job) -> list[Any]:
        return [job.get(key) for key in ("method", "variant", "finetuned")]

    for name in queue.names():
        other = queue.job(name)
        kept = queue.folder / name / "run" / "config.yaml"
        if row(other) != row(job) or not queue.finished(name) or not kept.exists():
            continue
        theirs: Mapping[str, Any] = yaml.safe_load(kept.read_text())["regulariser"]
        if not penalty.name == theirs["name"] == "taser":
            continue
        tried = {o.partition("=")[0] for each in (job, other) for o in each.get("candidate", [])}
        for key in FORM:
            if f"regulariser.{key}" in tried or not hasattr(penalty, key):
                continue
            if theirs.get(key) != getattr(penalty, key):
                raise ValueError(
                    f"{name} had regulariser.{key}={theirs.get(key)}, and this run of the same row "
                    f"would have {getattr(penalty, key)}: the recipe has changed since, so choose "
                    "another folder"
                )


def _reference_score(config: Config, dataset: Dataset) -> DenoisingScore | None:
    """The same for all variants: what ships for the data, else what the run uses."""
    for regulariser in (RegulariserConfig(), config.regulariser):
        with suppress(ValueError):  # none ships, or the recipe names none
            score = build_score(regulariser, dataset)
            if isinstance(score, DenoisingScore):
                return score
    return None
