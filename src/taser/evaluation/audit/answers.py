"""Checks of what the model returns, and of its gradients."""

import torch
from torch import Tensor

from taser.attacks import cross_entropy, input_gradient, quiet
from taser.probes.checks import looks_like_probabilities

from ..trial import Trial
from .check import Check
from .suspect import Suspect

ROUNDING = 1e-3  # of the logits' spread: what the order of a batch changes in float32, and more


def logits(suspect: Suspect) -> Check:
    """Are the outputs logits, or already probabilities?"""
    explanation = (
        "A softmax inside the model rounds away what cross-entropy is to climb; attack the logits."
    )
    z = _outputs(suspect.trial, suspect.trial.x)
    finite = bool(torch.isfinite(z).all())
    probabilities = finite and looks_like_probabilities(z)
    what = "probabilities" if probabilities else "outputs"
    figure = f"{what} from {float(z.min()):.3g} to {float(z.max()):.3g}"
    return Check("outputs are logits", finite and not probabilities, figure, explanation)


def repeatable(suspect: Suspect) -> Check:
    """Does the model answer the same again, whatever company an example has in its batch?"""
    explanation = (
        "Asked again in another order it should answer the same: where outputs are random or "
        "depend on the batch, an attack has to average over that, which plain attacks do not."
    )
    first = _outputs(suspect.trial, suspect.trial.x)
    again = _outputs(suspect.trial, suspect.trial.x.flip(0)).flip(0)
    change = float((first - again).abs().max() / first.std().clamp_min(1e-12))
    figure = f"outputs change by {change:.1g} of their spread"
    return Check("outputs repeat", change <= ROUNDING, figure, explanation, {"change": change})


def gradients(suspect: Suspect) -> Check:
    """Is there a gradient to follow at all?"""
    explanation = (
        "Where ∇CE at the example is zero, too small for a step or not finite (saturated softmax, "
        "rounded inputs), an attack stands still, and says nothing of how robust the model is."
    )
    trial = suspect.trial
    batches = zip(trial.x.split(trial.batch_size), trial.y.split(trial.batch_size), strict=True)
    with quiet(trial.quick):
        parts = [input_gradient(trial.quick, x, y, cross_entropy) for x, y in batches]
    gradient = torch.cat(parts)
    step = suspect.threat.ascent(gradient)  # of unit length, unless the gradient is too small
    length = suspect.threat.distance(step, torch.zeros_like(step))
    usable = gradient.flatten(1).isfinite().all(1) & (length > 0.5)
    return Check.of_count(
        "gradients exist", int((~usable).sum()), suspect.n, "without a usable gradient", explanation
    )


@torch.no_grad()
def _outputs(trial: Trial, x: Tensor) -> Tensor:
    with quiet(trial.model):
        return torch.cat([trial.model(rows.clone()).float() for rows in x.split(trial.batch_size)])
