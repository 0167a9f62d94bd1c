"""The paper's tables: methods without and with TASER and its control, trained and attacked."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from taser.attacks import Threat
from taser.evaluation import Evaluation, evaluate
from taser.training import load_trained, read_recipe, train
from taser.training.assemble import build_data

from .queue import NotYet, Progress, Queue


def do(folder: Path, job: dict[str, Any], progress: Progress | None) -> dict[str, Any]:
    """Train one run and judge it; both go on where they stopped."""
    overrides = list(job["overrides"])
    if "start" in job:
        start = folder.parent / job["start"] / "run" / "best.safetensors"
        if not (start.parent / "result.json").exists():
            if (folder.parent / job["start"] / "error.txt").exists():
                raise RuntimeError(f"{job['start']}, which it starts from, failed")
            raise NotYet(f"{job['start']} has to be trained first")
        overrides.append(f"model.weights={start}")
    config = read_recipe(job["recipe"], overrides)
    result = train(config, folder / "run", report=progress)
    judged = job["evaluation"]
    test = build_data(config.data).test
    record = evaluate(
        load_trained(folder / "run"), test.x, test.y,
        threat=Threat(judged["norm"], judged["epsilon"]), attacks=tuple(judged["attacks"]),
        n=judged["n"], out=folder / "evaluation", progress=progress,
    )  # fmt: skip
    examples = result.steps * config.loop.batch
    return {
        **{key: job[key] for key in ("method", "variant", "seed", "finetuned")},
        "seconds_per_example": result.seconds / examples,
        "best_step": result.best_step,
        "steps": result.steps,
        "record": json.loads(record.to_json()),
    }


def results(queue: Queue) -> list["RunResult"]:
    """Every finished run of a queue."""
    found = [queue.result(name) for name in queue.names()]
    return [RunResult(entry) for entry in found if entry is not None]


class RunResult:
    """One run's figures and its verdict on each example."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.method: str = entry["method"]
        self.variant: str = entry["variant"]
        self.seed: int = entry["seed"]
        self.finetuned: bool = entry["finetuned"]
        self.seconds_per_example: float = entry["seconds_per_example"]
        self.evaluation = Evaluation.from_json(json.dumps(entry["record"]))

    def correct(self, measure: str) -> Tensor:
        """(n,) bool: right when clean, under one attack, or in the worst case over all."""
        if measure == "clean":
            return self.evaluation.clean
        if measure == "worst":
            return self.evaluation.standing
        return self.evaluation.attacks[measure].standing
