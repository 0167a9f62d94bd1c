"""Gradient penalties against finite differences, in values and in parameter gradients."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cases
from taser.models import Wrapped
from taser.probes import Logit, Margin, Output, Probed
from taser.regularisers import GradientNorm, Jacobian, Regulariser
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
    frozen = copy.deepcopy(case.model)
    if mode == "training":
        case.model.train()
        with torch.no_grad():
            seen = frozen[0](case.x)  # type: ignore[operator, index]
        frozen[1].running_mean = seen.mean((0, 2, 3))  # type: ignore[index]
        frozen[1].running_var = seen.var((0, 2, 3), correction=0)  # type: ignore[index]
    return case, frozen


@pytest.mark.parametrize("name", ["mlp", "transformer", "batchnorm", "batchnorm training"])
def test_gradient_norm_is_the_mean_squared_input_gradient(name: str) -> None:
    case, frozen = case_of(name)
    expected = jacobian(Probed(frozen, Margin(), case.y), case.x).square().sum((1, 2)).mean()
    value = GradientNorm()(case.model, case.x, case.y)
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=0)


def test_gradient_norm_takes_any_probe() -> None:
    case = cases.case("mlp")
    value = GradientNorm(probe=Logit(2))(case.model, case.x, None)
    expected = jacobian(case.model, case.x)[:, 2].square().sum(1).mean()
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("of", ["margin", "loss"])
def test_gradient_norms(norm: str, of: str) -> None:
    """‖∇‖₁ and ‖∇‖₂² of the margin and of the cross-entropy, by central differences."""
    case = cases.case("mlp")
    f = Margin() if of == "margin" else lambda z, y: F.cross_entropy(z, y, reduction="none")
    gradient = jacobian(Probed(case.model, f, case.y), case.x)[:, 0]
    size = gradient.abs() if norm == "l1" else gradient.square()
    value = GradientNorm(norm, of)(case.model, case.x, case.y)  # type: ignore[arg-type]
    torch.testing.assert_close(value, size.sum(1).mean(), rtol=1e-7, atol=0)


@pytest.mark.parametrize("name", ["mlp", "transformer", "batchnorm", "batchnorm training"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("of", ["margin", "loss"])
def test_a_difference_has_the_gradient_of_double_backward(name: str, norm: str, of: str) -> None:
    """With and without the pass of the loss, whose f(x) makes the difference one-sided."""
    case, _ = case_of(name)
    parameters = list(case.model.parameters())
    found = {}
    for backend in ("reverse", "difference", "attached"):
        penalty = GradientNorm(norm, of, backend="reverse" if backend == "reverse" else "auto")  # type: ignore[arg-type]
        if backend == "attached":
            penalty.attach(case.model)
        case.model(case.x).sum()  # the pass of the loss
        value = penalty(case.model, case.x, case.y)
        gradients = torch.autograd.grad(
            value, parameters, allow_unused=True, materialize_grads=True
        )
        found[backend] = value.detach(), torch.cat([gradient.flatten() for gradient in gradients])
    value, expected = found["reverse"]
    for backend in ("difference", "attached"):
        torch.testing.assert_close(found[backend][0], value, rtol=1e-7, atol=0)
        # float64: central differences lose 1e-10, one-sided ones 1e-7
        assert (found[backend][1] - expected).norm() < 1e-5 * expected.norm()


def test_wrong_gradient_norms() -> None:
    with pytest.raises(ValueError, match="norm should be one of 'l1', 'l2'; got 'linf'"):
        GradientNorm("linf")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="of should be one of 'margin', 'loss'; got 'logits'"):
        GradientNorm(of="logits")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="probe is for of='margin'"):
        GradientNorm(of="loss", probe=Logit(1))
    with pytest.raises(ValueError, match="backend should be one of 'auto', 'difference'"):
        GradientNorm(backend="exact")  # type: ignore[arg-type]
    case = cases.case("mlp")
    with pytest.raises(ValueError, match="needs labels y"):
        GradientNorm(of="loss")(case.model, case.x, None)


@pytest.mark.parametrize("penalty", [GradientNorm, Jacobian])
def test_a_part_of_the_batch_is_unbiased(penalty: type[Regulariser]) -> None:
    """The mean of 400 halves lies within four of its standard errors."""
    case = cases.case("mlp")
    expected = GradientNorm()(case.model, case.x, case.y).detach()
    if penalty is Jacobian:
        expected = jacobian(case.model, case.x).square().sum((1, 2)).mean()
    part = penalty(fraction=0.5)
    draws = torch.stack([part(case.model, case.x, case.y).detach() for _ in range(400)])
    error = draws.std() / len(draws) ** 0.5
    assert 0 < error < 0.1 * expected
    assert abs(draws.mean() - expected) < 4 * error


@pytest.mark.parametrize("share", [False, True])
def test_a_part_is_normalised_by_the_statistics_of_the_whole(share: bool) -> None:
    case, reference = case_of("batchnorm training")
    shared = SharedPass(case.model) if share else None
    if shared is not None:
        with shared:
            case.model(case.x)
    rows = torch.randperm(len(case.x), generator=torch.Generator().manual_seed(0))[:2]
    x, y = case.x[rows], case.y[rows]  # type: ignore[index]
    expected = jacobian(Probed(reference, Margin(), y), x).square().sum((1, 2)).mean()
    value = GradientNorm(fraction=0.5)(case.model, case.x, case.y, shared=shared)
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=0)


def test_a_lazy_penalty_has_the_same_mean() -> None:
    case = cases.case("mlp")
    full, lazy = GradientNorm()(case.model, case.x, case.y), GradientNorm(every=2)
    values = [lazy(case.model, case.x, case.y) for _ in range(4)]
    assert [float(value.detach()) > 0 for value in values] == [True, False, True, False]
    torch.testing.assert_close(torch.stack(values).mean(), full)


@pytest.mark.parametrize("name", ["mlp", "batchnorm", "batchnorm training"])
def test_jacobian_is_unbiased(name: str) -> None:
    """The mean of 100 single projections lies within four of its standard errors."""
    case, frozen = case_of(name)
    expected = jacobian(frozen, case.x).square().sum((1, 2)).mean()
    penalty = Jacobian()
    draws = torch.stack([penalty(case.model, case.x, None).detach() for _ in range(100)])
    error = draws.std() / len(draws) ** 0.5
    assert 0 < error < 0.1 * expected
    assert abs(draws.mean() - expected) < 4 * error


@pytest.mark.parametrize("penalty", [GradientNorm, Jacobian])
def test_an_operation_in_place_at_the_start_leaves_the_inputs_alone(
    penalty: type[Regulariser],
) -> None:
    case = cases.case("batchnorm")
    x, values = case.x.clone(), []
    for inplace in (False, True):
        model = nn.Sequential(nn.ReLU(inplace=inplace), case.model).train()
        values.append(penalty()(model, x, case.y))
        assert torch.equal(x, case.x)
    torch.testing.assert_close(values[0], values[1])


def test_jacobian_of_one_output_has_no_variance() -> None:
    """A unit vector of one output is ±1, so one projection gives ‖∇f‖²."""
    case = cases.case("mlp")
    model = nn.Sequential(case.model, nn.Linear(3, 1).double())
    one = Jacobian()(model, case.x, None)
    torch.testing.assert_close(one, GradientNorm(probe=Output())(model, case.x, None))


def test_projections_are_averaged() -> None:
    case = cases.case("mlp")
    one = Jacobian()
    single = [one(case.model, case.x, None) for _ in range(3)]
    together = Jacobian(3)(case.model, case.x, None)
    torch.testing.assert_close(together, torch.stack(single).mean())
    with pytest.raises(ValueError, match=r"projections should be .* at least 1; got 0"):
        Jacobian(0)


def test_jacobian_of_a_model_that_works_in_place() -> None:
    case = cases.case("mlp")

    def value(first: nn.Module) -> Tensor:
        model = nn.Sequential(first, case.model)
        return Jacobian()(model, case.x, None)

    assert torch.equal(value(nn.ReLU(inplace=True)), value(nn.ReLU()))


@pytest.mark.parametrize(
    "penalty", [GradientNorm, partial(GradientNorm, "l1", of="loss"), partial(Jacobian, 2)]
)
@pytest.mark.parametrize("name", ["mlp", "transformer", "batchnorm", "batchnorm training"])
def test_parameter_gradients(name: str, penalty: Callable[[], Regulariser]) -> None:
    """Along random directions of the weights; the projections are the same at every call."""
    case, _ = case_of(name)
    parameters = list(case.model.parameters())

    def value() -> Tensor:
        return penalty()(case.model, case.x, case.y)

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


@pytest.mark.parametrize("penalty", [GradientNorm(), GradientNorm(backend="reverse"), Jacobian()])
def test_a_detached_model_is_refused(penalty: Regulariser) -> None:
    linear = nn.Linear(4, 3)
    model = Wrapped(lambda x: linear(x).detach(), linear)
    with pytest.raises(ValueError, match="does not depend on x through autograd"):
        penalty(model, torch.rand(6, 4), torch.arange(6) % 3)
