"""Parameter gradients of the penalty against finite differences, layer by layer, in float64."""

import pytest
import torch
from torch import Tensor

import cases
import taser
from taser.stein._checks import Backend, Operator

OPERATORS: list[Operator] = ["langevin", "first_order"]
SMOOTH = [name for name in cases.MODELS if name != "relu"]

ROUTES = [
    *((name, backend) for backend in ("exact", "reverse") for name in cases.MODELS),
    *((name, "difference") for name in SMOOTH),
    ("relu", "piecewise_linear"),
]


def penalty_of(case: cases.Case, backend: Backend, operator: Operator) -> Tensor:
    """The penalty with directions that are the same at every call.

    The step is larger than the default: finite differences over parameters divide the rounding
    error eps/t² by their own small step once more.
    """
    penalty = taser.SteinPenalty(operator=operator, backend=backend, probes=2, step=0.01)
    return penalty(case.model, case.x, case.y, case.s)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("name", "backend"), ROUTES)
def test_gradient_is_the_finite_difference(name: str, backend: Backend, operator: Operator) -> None:
    case = cases.case(name)
    parameters = [p for p in case.model.parameters() if p.requires_grad]
    value = penalty_of(case, backend, operator)
    # A bias behind a normalisation, or the last bias, has no influence: no gradient, or zero.
    gradients = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
    generator, h = torch.Generator().manual_seed(1), 1e-5
    for _ in range(3):
        direction = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
        analytic = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True))
        ends = []
        for sign in (1, -1):
            move(parameters, direction, sign * h)
            ends.append(penalty_of(case, backend, operator).item())
            move(parameters, direction, -sign * h)
        numeric = (ends[0] - ends[1]) / (2 * h)
        size = sum(float(g.square().sum()) for g in gradients) ** 0.5
        assert abs(analytic - numeric) < 2e-5 * size


def move(parameters: list, direction: list[Tensor], step: float) -> None:
    with torch.no_grad():
        for parameter, d in zip(parameters, direction, strict=True):
            parameter.add_(d, alpha=step)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", SMOOTH)
def test_difference_gives_the_gradient_of_reverse(name: str, operator: Operator) -> None:
    """With the default step, through every kind of layer: truncation t² ≈ 4e-8 at most."""
    case = cases.case(name)
    parameters = list(case.model.parameters())
    both = []
    for backend in ("reverse", "difference"):
        penalty = taser.SteinPenalty(operator=operator, backend=backend, probes=2)
        value = penalty(case.model, case.x, case.y, case.s)
        gradients = torch.autograd.grad(
            value, parameters, allow_unused=True, materialize_grads=True
        )
        both.append(torch.cat([g.flatten() for g in gradients]))
    assert (both[0] - both[1]).norm() < 1e-5 * both[0].norm()
