"""What the demonstration shows beside the table: audits, residuals, score fields."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from taser.attacks import PGD, Threat, margin
from taser.data import Dataset
from taser.evaluation import subset
from taser.evaluation.audit import Audit, audit
from taser.probes import Margin, Probed
from taser.scores import pretrained
from taser.stein import stein_residual
from taser.stein.guards import frozen
from taser.training import load_trained

from .queue import Progress, Queue
from .table_config import TableConfig, job_name

AUDITED = 100  # examples
SHOWN = 8


@dataclass(frozen=True, eq=False)
class Demo:
    """audits: of the models with TASER; residuals: σ·s·∇m at test points, (n,), for each model;
    x, attacked, scores: (SHOWN, 1, 8, 8), digits, what breaks the plain model, the score fields.
    """

    audits: dict[str, Audit]
    residuals: dict[str, Tensor]
    x: Tensor
    attacked: Tensor
    scores: Tensor


def look_closer(
    config: TableConfig, queue: Queue, dataset: Dataset, progress: Progress | None = None
) -> Demo:
    """Audit the TASER models of the demonstration, and take the residuals of all of them."""
    models = {
        f"{method}, {variant}": load_trained(queue.folder / job_name(method, variant, 0) / "run")
        for method in config.methods
        for variant in config.variants
    }
    threat = Threat(config.norm, config.epsilon)  # type: ignore[arg-type]
    rows = subset(len(dataset.test), AUDITED)
    x, y = dataset.test.rows(rows), dataset.test.y[rows]
    plain = models["standard, off"]
    audits = {
        name: audit(
            model, x, y, threat=threat, surrogate=plain, steps=20, restarts=2, queries=200,
            progress=progress,
        )
        for name, model in models.items()
        if name.endswith("taser")
    }  # fmt: skip
    score = pretrained("digits").at(timestep=50)
    attack = PGD(threat, steps=20, step_size=threat.epsilon / 8)
    attacked = attack(
        plain, x[:SHOWN], y[:SHOWN], loss=margin, generator=torch.Generator().manual_seed(0)
    )
    residuals = {
        name: _residuals(model, dataset.test.x, dataset.test.y) for name, model in models.items()
    }
    return Demo(audits, residuals, x[:SHOWN], attacked, score(x[:SHOWN]))


@torch.no_grad()
def _residuals(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """σ s(x + σε)·∇m(x), the mixed first-order residual in units of noise: (n,)."""
    score = pretrained("digits").at(timestep=50)
    _, s = score.noised(x, torch.Generator().manual_seed(0))
    with frozen(model):
        r = stein_residual(
            Probed(model, Margin(), y), x, s, operator="first_order", backend="reverse"
        )
    return score.sigma * r
