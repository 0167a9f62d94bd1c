"""A closer look at one trained network: accuracy over ε, geometry, residuals, an audit."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taser.attacks import Threat
from taser.data import Split
from taser.device import accelerator
from taser.evaluation import subset
from taser.evaluation.answers import device_of
from taser.evaluation.audit import TooFewRight, audit
from taser.evaluation.curve import accuracy_curve
from taser.probes import Margin, Probed
from taser.scores import DenoisingScore
from taser.stein import stein_residual
from taser.stein.guards import frozen
from taser.training import load_trained

from .geometry import geometry
from .queue import Progress, Queue
from .table_config import job_name

LOOKED_AT = 200  # test examples of the curve and the residuals


def look_closer(
    model: nn.Module,
    test: Split,
    threat: Threat,
    score: DenoisingScore | None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Accuracy at multiples of ε, where sensitivity points, and residuals by a score; as JSON."""
    rows = subset(len(test), LOOKED_AT)
    device = device_of(model, test.y)
    x, y = test.rows(rows).to(device), test.y[rows].to(device)
    score = None if score is None else score.to(device)
    curve = accuracy_curve(model, x, y, threat=threat, progress=progress)
    found: dict[str, Any] = {
        "curve": asdict(curve), "sensitivity": asdict(geometry(model, x, y, threat, score))
    }  # fmt: skip
    if score is not None:
        found["residuals"] = [round(r, 5) for r in residuals(model, x, y, score).tolist()]
    return found


@torch.no_grad()
def residuals(model: nn.Module, x: Tensor, y: Tensor, score: DenoisingScore) -> Tensor:
    """σ s·∇m(x) with s in pairs: TASER's first-order residual in units of noise, (n,)."""
    s = score.paired(x, torch.Generator(x.device).manual_seed(0))
    with frozen(model):
        r = stein_residual(
            Probed(model, Margin(), y), x, s, operator="first_order", backend="reverse"
        )
    return score.sigma * r


def audited(
    model: nn.Module,
    test: Split,
    threat: Threat,
    n: int,
    surrogate: nn.Module | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """A short audit's answers, as JSON, on n examples, or more while too few are right."""
    rows = subset(len(test), n)
    try:
        return audit(
            model, test.rows(rows), test.y[rows], threat=threat, surrogate=surrogate, steps=20,
            restarts=2, queries=200, progress=progress,
        ).numbers()  # fmt: skip
    except ValueError as error:
        if isinstance(error, TooFewRight) and n < len(test):
            return audited(model, test, threat, 2 * n, surrogate, progress)
        return {"verdict": f"not audited: {error}", "checks": [], "n": 0}


def plain_network(queue: Queue, seed: int) -> nn.Module | None:
    """The network of standard training alone, if it is finished: attacks transfer from it."""
    folder: Path = queue.folder / job_name("standard", "off", seed) / "run"
    return load_trained(folder).to(accelerator()) if (folder / "result.json").exists() else None
