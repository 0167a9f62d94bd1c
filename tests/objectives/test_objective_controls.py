"""The controls against finite differences, in values and in parameter gradients."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import cases
from taser._random import random_part
from taser.probes import Logit, Margin, Output, Probed
from taser.regularisers import GradientPenalty, JacobianPenalty
from taser.stein import SharedPass

STEP = 1e-5  # central differences: truncation h² ≈ 1e-10, rounding 1e-16/h ≈ 1e-11


def jacobian(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """∂f/∂x by central differences: (B, outputs, d)."""
    flat, columns = x.flatten(1), []
    with torch.no_grad():
        for i in range(flat.shape[1]):
            step = torch.zeros_like(flat)
            step[:, i] = STEP
            ends = [f((flat + sign * step).view_as(x)).reshape(len(x), -1) for sign in (1, -1)]
            columns.append((ends[0] - ends[1]) / (2 * STEP))
    return torch.stack(columns, 2)


def case_of(name: str) -> tuple[cases.Case, nn.Module]:
    """A case in evaluation or training mode, and the function that the penalty is to be of.

    In training mode BatchNorm takes the statistics of the batch, which then are constants.
    """
    name, _, mode = name.partition(" ")
    case = cases.case(name)
    asked = copy.deepcopy(case.model)
    if mode == "training":
        case.model.train()
        with torch.no_grad():
            seen = asked[0](case.x)  # type: ignore[operator, index]
        asked[1].running_mean = seen.mean((0, 2, 3))  # type: ignore[index]
        asked[1].running_var = seen.var((0, 2, 3), correction=0)  # type: ignore[index]
    return case, asked


@pytest.mark.parametrize("name", ["mlp", "transformer", "batchnorm", "batchnorm training"])
def test_gradient_penalty_is_the_mean_squared_input_gradient(name: str) -> None:
    case, asked = case_of(name)
    expected = jacobian(Probed(asked, Margin(), case.y), case.x).square().sum((1, 2)).mean()
    value = GradientPenalty()(case.model, case.x, case.y)
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=0)


def test_gradient_penalty_takes_any_probe() -> None:
    case = cases.case("mlp")
    value = GradientPenalty(Logit(2))(case.model, case.x, None)
    expected = jacobian(case.model, case.x)[:, 2].square().sum(1).mean()
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=0)


def test_gradient_penalty_of_a_part_is_unbiased() -> None:
    """The mean of 200 halves lies within four of its standard errors."""
    case, generator = cases.case("mlp"), torch.Generator().manual_seed(0)
    expected = GradientPenalty()(case.model, case.x, case.y)
    part = GradientPenalty(fraction=0.5)
    draws = torch.stack(
        [part(case.model, case.x, case.y, generator=generator).detach() for _ in range(200)]
    )
    error = draws.std() / len(draws) ** 0.5
    assert 0 < error < 0.1 * expected
    assert abs(draws.mean() - expected) < 4 * error
    torch.testing.assert_close(part.eval()(case.model, case.x, case.y), expected)


def test_gradient_penalty_of_a_part_normalises_as_the_loss_did() -> None:
    """By the statistics of the whole batch, and not of the part."""
    case, asked = case_of("batchnorm training")
    with SharedPass(case.model) as shared:
        case.model(case.x)
    rows = random_part(len(case.x), 0.5, torch.Generator().manual_seed(0))
    assert rows is not None
    x, y = case.x[rows], case.y[rows]  # type: ignore[index]
    expected = jacobian(Probed(asked, Margin(), y), x).square().sum((1, 2)).mean()
    value = GradientPenalty(fraction=0.5)(
        case.model, case.x, case.y, generator=torch.Generator().manual_seed(0), shared=shared
    )
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=0)


def test_a_part_needs_a_generator_and_a_share() -> None:
    case = cases.case("mlp")
    with pytest.raises(ValueError, match="generator"):
        GradientPenalty(fraction=0.5)(case.model, case.x, case.y)
    with pytest.raises(ValueError, match=r"fraction should lie in \(0, 1\]; got 0"):
        GradientPenalty(fraction=0)


@pytest.mark.parametrize("name", ["mlp", "batchnorm", "batchnorm training"])
def test_jacobian_penalty_is_unbiased(name: str) -> None:
    """The mean of 100 single projections lies within four of its standard errors."""
    (case, asked), generator = case_of(name), torch.Generator().manual_seed(0)
    expected = jacobian(asked, case.x).square().sum((1, 2)).mean()
    penalty = JacobianPenalty()
    draws = torch.stack(
        [penalty(case.model, case.x, None, generator=generator).detach() for _ in range(100)]
    )
    error = draws.std() / len(draws) ** 0.5
    assert 0 < error < 0.1 * expected
    assert abs(draws.mean() - expected) < 4 * error


@pytest.mark.parametrize("penalty", [GradientPenalty(), JacobianPenalty()])
def test_an_operation_in_place_at_the_start_leaves_the_inputs_alone(penalty: nn.Module) -> None:
    case = cases.case("batchnorm")
    x, values = case.x.clone(), []
    for inplace in (False, True):
        model = nn.Sequential(nn.ReLU(inplace=inplace), case.model).train()
        values.append(penalty(model, x, case.y, generator=torch.Generator().manual_seed(0)))
        assert torch.equal(x, case.x)
    torch.testing.assert_close(values[0], values[1])


def test_jacobian_penalty_of_one_output_has_no_variance() -> None:
    """A unit vector of one output is ±1, so one projection gives ‖∇f‖²."""
    case = cases.case("mlp")
    model = nn.Sequential(case.model, nn.Linear(3, 1).double())
    one = JacobianPenalty()(model, case.x, None)
    torch.testing.assert_close(one, GradientPenalty(Output())(model, case.x, None))


def test_projections_are_averaged() -> None:
    case = cases.case("mlp")
    generator = torch.Generator().manual_seed(0)
    single = [JacobianPenalty()(case.model, case.x, None, generator=generator) for _ in range(3)]
    together = JacobianPenalty(3)(
        case.model, case.x, None, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(together, torch.stack(single).mean())
    with pytest.raises(ValueError, match="projections should be at least 1; got 0"):
        JacobianPenalty(0)


def test_jacobian_penalty_of_a_model_that_works_in_place() -> None:
    case = cases.case("mlp")

    def value(first: nn.Module) -> Tensor:
        model = nn.Sequential(first, case.model)
        return JacobianPenalty()(model, case.x, None, generator=torch.Generator().manual_seed(0))

    assert torch.equal(value(nn.ReLU(inplace=True)), value(nn.ReLU()))


@pytest.mark.parametrize("penalty", [GradientPenalty(), JacobianPenalty(2)])
@pytest.mark.parametrize("name", ["mlp", "transformer", "batchnorm", "batchnorm training"])
def test_parameter_gradients(name: str, penalty: nn.Module) -> None:
    """Along random directions of the weights; the projections are the same at every call."""
    case, _ = case_of(name)
    parameters = list(case.model.parameters())

    def value() -> Tensor:
        return penalty(case.model, case.x, case.y, generator=torch.Generator().manual_seed(0))

    gradients = torch.autograd.grad(value(), parameters, allow_unused=True, materialize_grads=True)
    size = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        way = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
        ends = []
        for sign in (1, -2, 1):  # up, down, and back
            with torch.no_grad():
                for parameter, direction in zip(parameters, way, strict=True):
                    parameter.add_(direction, alpha=sign * STEP)
            ends.append(value().item())
        expected = (ends[0] - ends[1]) / (2 * STEP)
        found = sum((g * d).sum().item() for g, d in zip(gradients, way, strict=True))
        assert abs(found - expected) < 1e-7 * size
