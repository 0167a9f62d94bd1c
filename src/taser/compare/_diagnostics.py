"""A closer look at one trained network: accuracy over ε, geometry, residuals, an audit."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taser._tensors import default_device
from taser.attacks import Threat
from taser.attacks._pgd import outputs_and_gradient
from taser.data import Split
from taser.evaluation import TooFewCorrect, audit, subset
from taser.evaluation._curve import accuracy_curve
from taser.evaluation._record import device_of
from taser.probes import Logit, Margin, Probed
from taser.scores import DenoisingScore
from taser.stein import stein_residual
from taser.stein._model_state import eval_mode
from taser.training import load_trained

from ._comparison_config import job_name
from ._jobs import Progress, Queue

DRAWS = 16  # of the noise for each example


@dataclass(frozen=True)
class Geometry:
    """Of n test examples, with m the smooth margin and ε̂ = −σ(s(x + σε) − s(x − σε))/2.

    gradient
        The root mean square of ‖∇m‖.
    off_data
        The mean of E_ε(ε̂·∇m)²/‖∇m‖²: how much of an example's sensitivity lies in directions that
        the denoiser takes for noise. One where it knows all noise for noise, near zero along the
        data. No rescaling of the network changes it. None without a score. In pairs, because what
        a denoiser says of x itself is no share of anything: with it a network had 197 %.
    linear
        The share of the examples that would be right under the worst allowed change, if every logit
        was linear around them.
    """

    gradient: float
    off_data: float | None
    linear: float


def geometry(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, score: DenoisingScore | None
) -> Geometry:
    """x: (n, *); y: (n,)."""
    with eval_mode(model):
        g = outputs_and_gradient(model, x, y, Margin())[1].flatten(1)
        right = linearised(model, x, y, threat)
    squared = g.square().sum(1)
    return Geometry(
        gradient=float(squared.mean().sqrt()),
        off_data=None if score is None else float(_off_data(x, g, score).mean()),
        linear=float(right.float().mean()),
    )


def linearised(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    """Whether z_y − z_k stays above zero for all k ≠ y, by its first-order change alone: (n,).

    Under ℓ∞ the worst change inside the box is known, pixel by pixel; under ℓ2 the box is left out,
    which makes the change a little worse than any that is allowed.
    """
    logits, own = outputs_and_gradient(model, x, y, Logit())
    stands = torch.ones(len(x), dtype=torch.bool, device=x.device)
    for k in range(logits.shape[1]):
        rise = (outputs_and_gradient(model, x, y, Logit(k))[1] - own).flatten(1)  # of z_k − z_y
        gap = logits.gather(1, y[:, None])[:, 0] - logits[:, k]
        stands &= (gap > _largest_rise(rise, x.flatten(1), threat)) | (y == k)
    return stands


def _largest_rise(g: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """max g·δ over the allowed δ: (n, d), (n, d) → (n,)."""
    if threat.norm == "l2":
        return threat.epsilon * g.norm(dim=1)
    if threat.low is None or threat.high is None:
        return threat.epsilon * g.abs().sum(1)
    room = torch.where(g > 0, threat.high - x, x - threat.low).clamp(0, threat.epsilon)
    return (g.abs() * room).sum(1)


def _off_data(x: Tensor, g: Tensor, score: DenoisingScore) -> Tensor:
    """E_ε(ε̂·g)²/‖g‖² of each example, zero where there is no sensitivity: (n,)."""
    generator = torch.Generator(x.device).manual_seed(0)
    along = [(score.sigma * score.paired(x, generator).flatten(1) * g).sum(1).square()
             for _ in range(DRAWS)]  # fmt: skip
    squared = g.square().sum(1)
    return torch.where(squared > 0, torch.stack(along).mean(0) / squared, torch.zeros_like(squared))


LOOKED_AT = 200  # test examples of the curve and the residuals


def diagnose(
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
    with eval_mode(model):
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
        if isinstance(error, TooFewCorrect) and n < len(test):
            return audited(model, test, threat, 2 * n, surrogate, progress)
        return {"verdict": f"not audited: {error}", "checks": [], "n": 0}


def plain_network(queue: Queue, seed: int) -> nn.Module | None:
    """The network of standard training alone, if it is finished: attacks transfer from it."""
    folder: Path = queue.folder / job_name("standard", "off", seed) / "run"
    return load_trained(folder).to(default_device()) if (folder / "result.json").exists() else None
