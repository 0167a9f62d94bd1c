"""What test_training_processes.py runs twice: in one process, and by torchrun in two.

The attacks begin at points that depend on x alone, and the models have no BatchNorm but where
nothing is compared with one process: all else would be other draws or other statistics.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from small_runs import MLP, small
from torch import Tensor

from taser._checkpoint import weights_as_bytes
from taser._runtime import exit_process, is_main_process, world_size
from taser.attacks import PGD
from taser.training import Config
from taser.training import _run as run
from taser.training._build import Setup, set_up

LANGEVIN = {
    "name": "taser", "score": "gaussian", "form": "paper", "backend": "exact", "weight": 1e-4,
}  # fmt: skip
SMOOTH = {**MLP, "activation": "silu"}
AWP = {"awp": True, "awp_start": 0, "awp_gamma": 0.05}

STEPS: dict[str, dict[str, Any]] = {
    "standard": {},
    "pgd": {"objective": {"name": "pgd"}},
    "first order": {"regulariser": {**LANGEVIN, "operator": "first_order", "weight": 0.1}},
    "langevin": {"objective": {"name": "pgd"}, "regulariser": LANGEVIN},
    "running centre": {"regulariser": {**LANGEVIN, "center": "running"}},
    "trades and awp": {"objective": {"name": "trades", **AWP}, "regulariser": LANGEVIN},
    "mart, awp with the penalty": {
        "objective": {"name": "mart", **AWP}, "regulariser": LANGEVIN,
    },
    "in parts, with a teacher": {
        "objective": {"name": "trades"}, "teacher": {"weight": 1.0}, "loop": {"accumulate": 2},
        "regulariser": {"name": "gradient-norm"},
    },
    "clipped": {"optimiser": {"clip": 0.1}},
}  # fmt: skip

SGD = {"name": "sgd", "rate": 0.1}
EVEN = {"examples": 125}  # which gives batches of 64 and 62: two processes drop nothing


def trained() -> Config:
    return small(
        data=EVEN, model=SMOOTH, optimiser=SGD,
        regulariser={**LANGEVIN, "target_loss": 2.3, "weight": 0.2}, loop={"epochs": 2, "ema": 0.9},
        validation={"examples": 512},
    )  # fmt: skip


def with_statistics() -> Config:
    return small(objective={"name": "pgd"}, loop={"epochs": 2, "ema": 0.9})


def start(_: PGD, x: Tensor, __: Any) -> Tensor:
    """Beside x, wherever x is."""
    return x + 1e-3 * (50 * x + torch.arange(8)).sin()


def step(config: Config) -> dict[str, Tensor]:
    """The numbers and the gradients of a step, and the weights after it.

    For a running centre, which has to have a past, of the second step. The others stop at the
    first: once weights differ by their rounding, an attack can take another sign of a gradient
    that is next to nothing, and that is no small difference any more.
    """
    setup: Setup = set_up(config)
    steps = 2 if config.regulariser.center == "running" else 1
    for number, batch in zip(range(steps), setup.batches, strict=False):
        size = len(batch.x) // world_size()
        rows = slice(setup.rank * size, (setup.rank + 1) * size)
        setup.learner.step_number = number
        numbers = setup.learner.step(
            batch.x[rows], batch.y[rows], torch.Generator(),
            weight=config.regulariser.weight, perturb=config.objective.awp,
        )  # fmt: skip
    gradients = {
        f"gradient of {name}": parameter.grad
        for name, parameter in setup.learner.module.named_parameters()
    }
    return {**numbers, **gradients, **setup.learner.module.state_dict()}


def everything(out: Path) -> None:
    """All of it, into `out`; the attacks have to begin at `start`."""
    for name, sections in STEPS.items():
        sections = {**sections, "optimiser": {**SGD, **sections.get("optimiser", {})}}
        found = step(small(data=EVEN, model=SMOOTH, **sections))
        if is_main_process():
            (out / f"{name}.safetensors").write_bytes(weights_as_bytes(found))
    for name, config in {"trained": trained(), "statistics": with_statistics()}.items():
        whole = run._Run(set_up(config), out / name, None)
        whole.run()
        content = weights_as_bytes(whole.setup.evaluated.state_dict())
        (out / f"{name} {whole.setup.rank}.safetensors").write_bytes(content)


if __name__ == "__main__":
    torch.set_num_threads(1)
    PGD._begin = start  # type: ignore[method-assign]
    everything(Path(sys.argv[1]))
    exit_process()
