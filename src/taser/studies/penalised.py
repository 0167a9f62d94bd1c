"""A small smooth classifier of points in the plane, trained with one penalty or another."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from taser.stein import SteinPenalty

from .sensitivity import margin_gradient

START = 6.0
"""How much larger than usual the first layer starts."""
Penalty = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
"""(model, x, y, s) → a scalar to add to the loss, as :class:`taser.SteinPenalty` is called."""


def isotropic(model: nn.Module, x: Tensor, y: Tensor, _s: Tensor) -> Tensor:
    """E‖∇m‖², which treats every direction alike and needs no score."""
    return margin_gradient(model, x, y, graph=True).square().sum(1).mean()


def first_order() -> Penalty:
    """Var(s·∇m): the Stein residual without its Laplacian."""
    return SteinPenalty(operator="first_order", backend="exact")


def langevin() -> Penalty:
    """Var(Δm + s·∇m), the paper's penalty.

    In the plane there are only two second derivatives to take: the exact backend costs two
    Hessian-vector products and has no probe noise. A difference would need a step well below the
    thickness σ of the data, which its default of 0.03 is not.
    """
    return SteinPenalty(backend="exact")


PENALTIES: dict[str, Callable[[], Penalty]] = {
    "isotropic": lambda: isotropic,
    "first-order": first_order,
    "taser": langevin,
}


def train(
    x: Tensor,
    y: Tensor,
    *,
    penalty: Penalty | None,
    weight: float,
    at: Tensor,
    s: Tensor,
    seed: int,
    steps: int,
    batch: int,
    width: int,
    rate: float,
) -> nn.Module:
    """Minimise the cross-entropy at x plus weight · penalty at `at`, where the score is s.

    x, at, s: (n, 2), row by row for the same example; y: (n,).

    The seed fixes the first weights and the order of the examples, so that runs which differ in
    the penalty differ in nothing else. Adam; the rate rises to `rate` and falls back to nothing.
    """
    model = classifier(width, int(y.max()) + 1, seed)
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    draws = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,), generator=draws)
        loss = cross_entropy(model(x[rows]), y[rows])
        if penalty is not None:
            loss = loss + weight * penalty(model, at[rows], y[rows], s[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    if not bool(torch.isfinite(loss)):
        raise RuntimeError(
            f"training with seed {seed} and penalty weight {weight:g} diverged, to a loss of "
            f"{float(loss.detach())}: a lower rate than {rate:g}, or weaker strengths, should help"
        )
    return model.eval()


def classifier(width: int, classes: int, seed: int) -> nn.Module:
    """Two hidden layers of SiLU, so that every derivative exists; leaves the global seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stem = nn.Linear(2, width)
        model = nn.Sequential(
            stem, nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, classes)
        )
    # From the usual start the network is close to linear and slow to bend: after a few hundred
    # steps a comparison would be of how fast the penalties train, not of what they train.
    with torch.no_grad():
        for parameter in stem.parameters():
            parameter.mul_(START)
    return model
