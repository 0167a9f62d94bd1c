"""Evaluation and diagnostics of one trained network, as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from taser._files import Progress
from taser._tensors import default_device
from taser.attacks import Threat
from taser.attacks._pgd import outputs_and_gradient
from taser.data import Split
from taser.evaluation import TooFewCorrect, accuracy_curve, audit, evaluate, shift, subset
from taser.evaluation._corruptions import CORRUPTIONS
from taser.evaluation._record import device_of
from taser.probes import Logit, Margin, Probed
from taser.scores import DenoisingScore
from taser.stein import stein_residual
from taser.stein._model_state import eval_mode
from taser.training import load_trained

from ._comparison_config import Job, job_name

DRAWS = 16  # of the noise for each example
EXAMPLES = 200  # of the test part, for the curve, the sensitivity and the residuals


def evaluate_run(
    model: nn.Module,
    folder: Path,
    test: Split,
    settings: dict[str, Any],
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """One evaluation for all attacks on the same number of examples, the largest number first."""
    attacks, threat = settings["attacks"], Threat(settings["norm"], settings["epsilon"], *test.box)
    return [
        json.loads(
            evaluate(
                model, test.x, test.y, threat=threat, n=n,
                attacks=[name for name, size in attacks.items() if size == n],
                out=folder / f"evaluation-{n}", progress=progress,
            ).to_json()
        )
        for n in sorted(set(attacks.values()), reverse=True)
    ]  # fmt: skip


def diagnose(
    model: nn.Module,
    test: Split,
    job: Job,
    runs: Path,
    score: DenoisingScore | None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Accuracy over ε, sensitivity, residuals, corruptions, and an audit if the job has one.

    runs: the folder of all runs; an audit transfers attacks from the standard network in it.
    """
    threat = Threat(job["evaluation"]["norm"], job["evaluation"]["epsilon"], *test.box)
    rows = subset(len(test), EXAMPLES)
    device = device_of(model, test.y)
    x, y = test.rows(rows).to(device), test.y[rows].to(device)
    score = None if score is None else score.to(device)
    curve = accuracy_curve(model, x, y, threat=threat, progress=progress)
    found: dict[str, Any] = {
        "curve": asdict(curve), "sensitivity": asdict(sensitivity(model, x, y, threat, score))
    }  # fmt: skip
    if score is not None:
        found["residuals"] = [round(r, 5) for r in residuals(model, x, y, score).tolist()]
    if corrupted := corruption_accuracy(model, test, job["evaluation"]["n"], progress):
        found["corrupted"] = corrupted
    if job["audited"]:
        plain = runs / job_name("standard", "off", job["seed"]) / "run"
        finished = (plain / "result.json").exists()
        surrogate = load_trained(plain).to(default_device()) if finished else None
        found["audit"] = short_audit(model, test, threat, job["audited"], surrogate, progress)
    return found


def corruption_accuracy(
    model: nn.Module, test: Split, n: int, progress: Progress | None = None
) -> dict[str, Any] | None:
    """Correct answers to n test images under every corruption and severity; None for tables.

    of: the number of corruptions times severities; right: how many of these are correct, for each
    example, (n,); kinds: the accuracy under each kind of corruption.
    """
    if not test.is_images:
        return None
    rows = subset(len(test), n)
    found = shift(model, test.rows(rows), test.y[rows], progress=progress)
    kinds: dict[str, list[Tensor]] = {}
    for corruption in CORRUPTIONS:
        if corruption.name in found.correct:
            kinds.setdefault(corruption.kind, []).append(found.correct[corruption.name])
    every = torch.cat(list(found.correct.values()))  # (corruptions · severities, n)
    return {
        "of": len(every), "right": every.sum(0).tolist(),
        "kinds": {kind: float(torch.cat(own).float().mean()) for kind, own in kinds.items()},
    }  # fmt: skip


@dataclass(frozen=True)
class Sensitivity:
    """Of n test examples, with m the smooth margin and ε̂ = −σ(s(x + σε) − s(x − σε))/2.

    gradient
        The root mean square of ‖∇m‖.
    off_data
        The mean of E_ε(ε̂·∇m)²/‖∇m‖²: the share of the sensitivity in directions that the
        denoiser takes for noise. It is one where the denoiser recognises all noise, and near zero
        along the data. Rescaling the network does not change it. None without a score. The scores
        are paired, because a denoiser's answer to x itself gives no share: with it a network had
        197 %.
    linear
        The accuracy under the worst allowed change, if every logit was linear around each example.
    """

    gradient: float
    off_data: float | None
    linear: float


def sensitivity(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, score: DenoisingScore | None
) -> Sensitivity:
    """x: (n, *); y: (n,)."""
    with eval_mode(model):
        g = outputs_and_gradient(model, x, y, Margin())[1].flatten(1)
        correct = linearised_correct(model, x, y, threat)
    return Sensitivity(
        gradient=float(g.square().sum(1).mean().sqrt()),
        off_data=None if score is None else float(_off_data(x, g, score).mean()),
        linear=float(correct.float().mean()),
    )


def linearised_correct(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    """Whether z_y − z_k stays above zero for all k ≠ y, by its first-order change alone: (n,).

    Under ℓ∞ the worst change inside the box is known, pixel by pixel; under ℓ2 the box is left out,
    which makes the change a little worse than any that is allowed.
    """
    logits, own = outputs_and_gradient(model, x, y, Logit())
    correct = torch.ones(len(x), dtype=torch.bool, device=x.device)
    for k in range(logits.shape[1]):
        rise = (outputs_and_gradient(model, x, y, Logit(k))[1] - own).flatten(1)  # of z_k − z_y
        gap = logits.gather(1, y[:, None])[:, 0] - logits[:, k]
        correct &= (gap > _largest_rise(rise, x.flatten(1), threat)) | (y == k)
    return correct


def _largest_rise(g: Tensor, x: Tensor, threat: Threat) -> Tensor:
    """max g·δ over the allowed δ: (n, d), (n, d) → (n,)."""
    if threat.norm == "l2":
        return threat.epsilon * g.norm(dim=1)
    if threat.low is None or threat.high is None:
        return threat.epsilon * g.abs().sum(1)
    room = torch.where(g > 0, threat.high - x, x - threat.low).clamp(0, threat.epsilon)
    return (g.abs() * room).sum(1)


def _off_data(x: Tensor, g: Tensor, score: DenoisingScore) -> Tensor:
    """E_ε(ε̂·g)²/‖g‖² of each example, zero where g is: (n,)."""
    generator = torch.Generator(x.device).manual_seed(0)
    along = [(score.sigma * score.paired(x, generator).flatten(1) * g).sum(1).square()
             for _ in range(DRAWS)]  # fmt: skip
    squared = g.square().sum(1)
    return torch.where(squared > 0, torch.stack(along).mean(0) / squared, torch.zeros_like(squared))


@torch.no_grad()
def residuals(model: nn.Module, x: Tensor, y: Tensor, score: DenoisingScore) -> Tensor:
    """σ s·∇m(x) with paired scores s: TASER's first-order residual in units of noise, (n,)."""
    s = score.paired(x, torch.Generator(x.device).manual_seed(0))
    with eval_mode(model):
        probe = Probed(model, Margin(), y)
        return score.sigma * stein_residual(
            probe, x, s, operator="first_order", backend="reverse"
        )  # fmt: skip


def short_audit(
    model: nn.Module,
    test: Split,
    threat: Threat,
    n: int,
    surrogate: nn.Module | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """A short audit on n test examples, or more while too few of them are right."""
    rows = subset(len(test), n)
    try:
        return audit(
            model, test.rows(rows), test.y[rows], threat=threat, surrogate=surrogate, steps=20,
            restarts=2, queries=200, progress=progress,
        ).numbers()  # fmt: skip
    except ValueError as error:
        if isinstance(error, TooFewCorrect) and n < len(test):
            return short_audit(model, test, threat, 2 * n, surrogate, progress)
        return {"verdict": f"not audited: {error}", "checks": [], "n": 0}
