"""Which way a classifier's sensitivity points, and how far it would stand if it was linear."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from taser.attacks import Threat
from taser.attacks.pgd import outputs_and_gradient
from taser.probes import Margin
from taser.scores import DenoisingScore
from taser.stein.guards import frozen

DRAWS = 16  # of the noise: the off-data share of 200 examples is then known to a few per cent


@dataclass(frozen=True)
class Geometry:
    """Means over test examples, with m the smooth margin and σs(x + σε) = −ε̂.

    gradient
        The root mean square of ‖∇m‖.
    off_data
        E(ε̂·∇m)² / E‖∇m‖²: how much of the sensitivity lies in directions that the denoiser takes
        for noise. One if it knows all noise for noise, zero for sensitivity along the data. No
        rescaling of the network changes it. None without a score.
    radius
        The median of −m/‖∇m‖ in the norm dual to the threat's, negative where the network errs: the
        ε at which half of the examples would break if the network was linear around them.
    """

    gradient: float
    off_data: float | None
    radius: float


def geometry(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, score: DenoisingScore | None
) -> Geometry:
    """x: (n, *); y: (n,)."""
    with frozen(model):
        outputs, gradient = outputs_and_gradient(model, x, y, Margin())
    g, m = gradient.flatten(1), Margin()(outputs, y)
    dual = g.norm(p=1 if threat.norm == "linf" else 2, dim=1)
    total = g.square().sum(1).mean()
    off = None
    if score is not None:
        generator = torch.Generator(x.device).manual_seed(0)
        draws = [score.noised(x, generator)[1].flatten(1) for _ in range(DRAWS)]
        along = torch.stack([(score.sigma * s * g).sum(1) for s in draws])
        off = float(along.square().mean() / total.clamp_min(1e-30))
    return Geometry(float(total.sqrt()), off, float((-m / dual.clamp_min(1e-30)).median()))
