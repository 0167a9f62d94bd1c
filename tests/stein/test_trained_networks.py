"""The default difference on networks that are trained, where it matters: against float64."""

import copy
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import taser
from taser.probes import Output
from taser.stein._checks import Backend, Operator


@cache
def trained(activation: str) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A small CNN after eight epochs on digits, 64 images, their labels, and a rough score."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        images, y = load_digits(return_X_y=True)
        x = torch.tensor(images[:512]).float().view(-1, 1, 8, 8) / 16
        y = torch.tensor(y[:512])
        model = taser.models.build(
            "cnn", classes=10, shape=(1, 8, 8), width=8, activation=activation
        )
        optimiser = torch.optim.Adam(model.parameters(), 5e-3)
        for _ in range(8):
            for rows in torch.randperm(512).split(64):
                optimiser.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()
        s = 4 * torch.randn(64, 1, 8, 8)
    return model, x[:64], y[:64], s


def flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients]).double()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("operator", "shared"), [("langevin", False), ("first_order", False), ("first_order", True)]
)
def test_the_default_step_in_float32(operator: Operator, shared: bool, training: bool) -> None:
    """Measured: value within 0.06 %, gradient within 0.7 %; the old step of 0.03 had 7 %."""
    model, x, y, s = trained("silu")
    model, found = copy.deepcopy(model).train(training), []
    exact = copy.deepcopy(model).double()
    for network, backend, kind in ((exact, "reverse", torch.float64), (model, "auto", x.dtype)):
        penalty = taser.SteinPenalty(operator=operator, backend=backend)  # type: ignore[arg-type]
        made = None
        if shared and backend == "auto":
            with taser.SharedPass(network) as made:
                made.outputs = network(x)
        value = penalty(network, x.to(kind), y, s.to(kind), shared=made)
        found.append((value.item(), flat(torch.autograd.grad(value, list(network.parameters())))))
    (value, gradient), (approximate, approximate_gradient) = found
    assert approximate == pytest.approx(value, rel=2e-3)
    assert (approximate_gradient - gradient).norm() < 0.02 * gradient.norm()


def test_across_kinks_a_first_difference_has_the_right_gradient() -> None:
    """Autograd misses that the kinks of a ReLU network move with its weights.

    R of 20,000 points changes smoothly with the weights, so finite differences over them judge.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)
    ).double()
    x, parameters = torch.randn(20000, 2, dtype=torch.float64), list(model.parameters())
    s = torch.randn_like(x)

    def penalty(backend: Backend) -> Tensor:
        options = {"operator": "first_order", "backend": backend, "center": "none"}
        return taser.SteinPenalty(Output(), **options)(model, x, None, s)  # type: ignore[arg-type]

    def gradient(backend: Backend) -> Tensor:
        grads = torch.autograd.grad(
            penalty(backend), parameters, allow_unused=True, materialize_grads=True
        )
        return flat(grads)

    gradients = {b: gradient(b) for b in ("reverse", "difference")}  # type: ignore[arg-type]
    direction = gradients["difference"] - gradients["reverse"]  # where the two disagree most
    direction = direction / direction.norm()
    start, ends = nn.utils.parameters_to_vector(parameters).detach(), []
    with torch.no_grad():
        for h in (0.02, -0.02):
            nn.utils.vector_to_parameters(start + h * direction, parameters)
            ends.append(penalty("reverse").item())
    true = (ends[0] - ends[1]) / 0.04
    assert float(gradients["difference"] @ direction) == pytest.approx(true, rel=0.1)
    assert float(gradients["reverse"] @ direction) < 0.1 * true
