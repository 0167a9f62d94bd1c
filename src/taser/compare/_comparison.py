"""Train and evaluate every run of a comparison."""

import json
import os
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from taser._files import Progress
from taser._runtime import default_device
from taser._settings import read_yaml
from taser.attacks import Threat
from taser.data import Split
from taser.evaluation import TooFewCorrect, accuracy_curve, audit, evaluate, subset
from taser.training import load_trained, read_recipe, train
from taser.training._build import build_data
from taser.training._config import RegulariserConfig
from taser.training._recipes import check_code

from ._comparison_config import ComparisonConfig, Job, job_name, read_comparison
from ._executors import LocalProcesses
from ._run_results import Results, read_results
from ._runs import Runs, run_all

ROW_KEYS = ("form", "operator", "center", "timestep", "sigma")  # the same in all seeds of a row
CURVE = 200  # test examples for the curve of accuracy against ε


def compare(
    config: ComparisonConfig | Path | str, out: Path | str, *, jobs: int | None = None,
    threads: int | None = None, executor: Executor | None = None, trust_code: bool = False,
    progress: Progress | None = None,
) -> Results:  # fmt: skip
    """Train and evaluate methods × variants × seeds; call it again to resume.

    Finished runs are skipped. config: a configuration, its YAML file, or the name of a shipped one
    such as "digits"; jobs: number of local processes, by default one, or one for each GPU; threads:
    threads of each run, by default an equal share of the cores; executor: replaces the local
    processes, such as a Dask client's `get_executor()` or submitit's, whose workers see the folder;
    trust_code: import the code that recipes and settings name (`model.name`, `regulariser.score`),
    which is refused otherwise. The runs are in out/runs. If some of them failed, RunsFailed is
    raised at the end, and `read_results(out)` returns the others. In a script, call it below
    `if __name__ == "__main__":`, because local processes import the script.
    """
    if not isinstance(config, ComparisonConfig):
        config = read_comparison(config, trust_code=trust_code)
    runs, wanted = Runs(Path(out).absolute() / "runs"), config.runs()
    runs.add(wanted)
    run = partial(run_job, trust_code=trust_code)
    jobs = jobs or max(1, torch.cuda.device_count())
    if executor is None:
        threads = threads or max(1, (os.cpu_count() or 1) // jobs)
    with LocalProcesses(jobs) if executor is None else nullcontext(executor) as pool:
        run_all(runs, list(wanted), run, pool, threads=threads, progress=progress)
    return read_results(out)


def run_job(
    folder: Path, job: Job, progress: Progress | None, *, trust_code: bool = False
) -> dict[str, Any]:
    """Train and evaluate one run; resumable."""
    load_network = partial(load_trained, trust_code=trust_code)
    runs = Runs(folder.parent)
    chosen = chosen_overrides(runs, job["choices"])
    overrides = [*job["overrides"], *chosen, *job.get("candidate", [])]
    if "start" in job:
        home = runs.folder / job["start"] / "run"
        if not (home / "result.json").exists():
            runs.required_result(job["start"])
        overrides.append(f"model.weights={home / 'best.safetensors'}")
    config = read_recipe(job["recipe"], overrides, trust_code=True)  # checked in the next line
    check_code(config, f"{folder}/job.json", trust_code=trust_code)
    _check_same_penalty(runs, job, config.regulariser)
    stages = 1 if "candidate" in job else 3 + (job.get("audited", 0) > 0)
    trained = train(config, folder / "run", report=_stage(progress, 0, stages, "training"))
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
    model = load_network(folder / "run").to(default_device())
    test, settings = dataset.test, job["evaluation"]
    evaluations = _evaluate(model, folder, test, settings, _stage(progress, 1, stages, "attacks"))
    threat, rows = (
        Threat(settings["norm"], settings["epsilon"], *test.box),
        subset(len(test), CURVE),
    )
    x, y = test.rows(rows), test.y[rows]
    curve = accuracy_curve(
        model, x, y, threat=threat, progress=_stage(progress, 2, stages, "accuracy against ε")
    )
    diagnostics: dict[str, Any] = {"curve": asdict(curve)}
    if job["audited"]:
        plain = runs.folder / job_name("standard", "off", job["seed"]) / "run"
        trained_plainly = (plain / "result.json").exists()  # attacks on it are transferred
        surrogate = load_network(plain).to(default_device()) if trained_plainly else None
        stage = _stage(progress, 3, stages, "audit")
        diagnostics["audit"] = _audit(model, test, threat, job["audited"], surrogate, stage)
    return {
        **result, "finetuned": job["finetuned"], "chosen": chosen,
        "evaluations": evaluations, "diagnostics": diagnostics,
    }  # fmt: skip


def _stage(progress: Progress | None, number: int, stages: int, name: str) -> Progress:
    """Progress of one of several stages, in per cent of all stages, with the stage's name."""

    def report(done: int, total: int, _: str) -> None:
        if progress:
            progress(100 * number + 100 * done // max(total, 1), 100 * stages, name)

    report(0, 1, name)
    return report


def _evaluate(
    model: nn.Module, folder: Path, test: Split, settings: Job, progress: Progress | None
) -> list[dict[str, Any]]:
    """One evaluation for each number of examples, the largest first, by all its attacks."""
    attacks, threat = settings["attacks"], Threat(settings["norm"], settings["epsilon"], *test.box)
    sizes = sorted(set(attacks.values()), reverse=True)
    return [
        json.loads(
            evaluate(
                model, test.x, test.y, threat=threat, n=n,
                attacks=[name for name, size in attacks.items() if size == n],
                out=folder / f"evaluation-{n}",
                progress=_stage(progress, number, len(sizes), "attacks"),
            ).to_json()
        )
        for number, n in enumerate(sizes)
    ]  # fmt: skip


def _audit(
    model: nn.Module, test: Split, threat: Threat, n: int, surrogate: nn.Module | None,
    progress: Progress | None,
) -> dict[str, Any]:  # fmt: skip
    """A short audit on n test examples; on twice as many if too few of them are correct."""
    rows = subset(len(test), n)
    try:
        return audit(
            model, test.rows(rows), test.y[rows], threat=threat, surrogate=surrogate, steps=20,
            restarts=2, queries=200, progress=progress,
        ).numbers()  # fmt: skip
    except ValueError as error:
        if isinstance(error, TooFewCorrect) and n < len(test):
            return _audit(model, test, threat, 2 * n, surrogate, progress)
        return {"verdict": f"not audited: {error}", "checks": [], "n": 0}


def chosen_overrides(runs: Runs, choices: list[dict[str, Any]]) -> list[str]:
    """The winning overrides of the searches that a run needs.

    The best with enough clean accuracy wins; without any, the one with the highest clean accuracy.
    """
    overrides: list[str] = []
    clean = 0.0  # clean accuracy of the winner for "off"
    for choice in choices:
        failed = runs.failures().keys() & set(choice["among"])  # such as a rate that diverged
        if len(failed) == len(choice["among"]):
            raise RuntimeError(f"all candidates of its search failed: {', '.join(sorted(failed))}")
        tried = [runs.required_result(name) for name in choice["among"] if name not in failed]
        floor = clean - choice["clean_cost"] if choice["clean_cost"] is not None else 0.0
        allowed = [run for run in tried if run["clean"] >= floor]
        winner = max(allowed or tried, key=itemgetter(choice["measure"] if allowed else "clean"))
        overrides += winner["candidate"]
        clean = winner["clean"]
    return overrides


def _check_same_penalty(runs: Runs, job: Job, penalty: RegulariserConfig) -> None:
    """Raise if a finished run of this row used another penalty: the recipe has changed."""
    ours, row = asdict(penalty), [job.get(key) for key in ("method", "variant", "finetuned")]
    for name in filter(runs.finished, runs.names()):
        other, kept = runs.job(name), runs.folder / name / "run" / "config.yaml"
        if [other.get(key) for key in ("method", "variant", "finetuned")] != row:
            continue
        theirs = read_yaml(kept)["regulariser"] if kept.exists() else {}
        tried = {o.partition("=")[0] for each in (job, other) for o in each.get("candidate", [])}
        for key in ROW_KEYS if ours["name"] == theirs.get("name") == "taser" else ():
            if f"regulariser.{key}" not in tried and theirs.get(key) != ours.get(key):
                raise ValueError(
                    f"{name} had regulariser.{key}={theirs.get(key)}, and this run of the same row "
                    f"would have {ours.get(key)}: the recipe has changed, so choose another folder"
                )
