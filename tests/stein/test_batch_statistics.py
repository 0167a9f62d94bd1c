"""BatchNorm in training mode: statistics fixed in the input, moving with the weights."""

import copy

import pytest
import torch
from torch import Tensor, nn

import cases
import taser
from taser.stein._batchnorm import Statistics
from taser.stein._checks import Backend, UnsupportedLayer

ROUTES: list[tuple[str, Backend]] = [
    ("batchnorm", "reverse"), ("batchnorm", "exact"), ("batchnorm", "difference"),
    ("relu", "reverse"), ("relu", "piecewise_linear"),
]  # fmt: skip


def penalty_of(
    model: nn.Module, case: cases.Case, backend: Backend, which: Statistics = "auto"
) -> Tensor:
    penalty = taser.SteinPenalty(backend=backend, probes=2, step=0.01, batchnorm=which)
    return penalty(model, case.x, case.y, case.s)


def with_statistics_of(case: cases.Case) -> nn.Module:
    """The slow oracle: a copy in evaluation mode whose running statistics are the batch's own."""
    model = copy.deepcopy(case.model)
    norm = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    seen = []
    handle = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model.eval()(case.x)
        handle.remove()
        var, mean = torch.var_mean(seen[0], (0, 2, 3), correction=0)
        norm.running_mean.copy_(mean)  # type: ignore[union-attr]
        norm.running_var.copy_(var)  # type: ignore[union-attr]
    return model


@pytest.mark.parametrize(("name", "backend"), ROUTES)
def test_the_penalty_is_that_of_the_batchs_own_statistics(name: str, backend: Backend) -> None:
    case = cases.case(name)
    expected = penalty_of(with_statistics_of(case), case, backend)
    before = copy.deepcopy(case.model.train().state_dict())
    value = penalty_of(case.model, case, backend)
    # The two sum in another order, which a second difference magnifies by 1/t².
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=0)
    assert all(torch.equal(before[key], now) for key, now in case.model.state_dict().items())
    assert not torch.isclose(value, penalty_of(case.model, case, backend, "running"), rtol=1e-3)


@pytest.mark.parametrize(("name", "backend"), ROUTES)
def test_its_gradient_follows_the_statistics(name: str, backend: Backend) -> None:
    case = cases.case(name)
    case.model.train()
    parameters = list(case.model.parameters())
    gradients = torch.autograd.grad(
        penalty_of(case.model, case, backend), parameters, allow_unused=True, materialize_grads=True
    )
    size = sum(float(g.square().sum()) for g in gradients) ** 0.5
    generator, h = torch.Generator().manual_seed(1), 1e-5
    direction = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, d in zip(parameters, direction, strict=True):
                parameter.add_(d, alpha=sign * h)
            ends.append(penalty_of(case.model, case, backend).item())
            for parameter, d in zip(parameters, direction, strict=True):
                parameter.add_(d, alpha=-sign * h)
    analytic = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True))
    assert abs(analytic - (ends[0] - ends[1]) / (2 * h)) < 2e-5 * size


def test_scaling_a_convolution_before_the_norm_changes_nothing() -> None:
    """As in the loss; with running statistics the penalty would reward smaller weights."""
    case = cases.case("batchnorm")
    model = nn.Sequential(*case.model.train())
    model[1].eps = 0.0
    value = penalty_of(model, case, "reverse")
    gradient = torch.autograd.grad(value, model[0].weight)[0]
    assert abs((gradient * model[0].weight).sum().item()) < 1e-9 * value.item()
    running = torch.autograd.grad(penalty_of(model, case, "reverse", "running"), model[0].weight)[0]
    assert abs((running * model[0].weight).sum().item()) > 1e-2 * value.item()


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("fraction", [0.25, 0.1])
def test_a_part_of_the_batch_has_the_statistics_of_the_whole(
    fraction: float, attached: bool
) -> None:
    """An MLP with batch 64: the mean of R over 200 draws is that of the batch, ±4.5 errors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Linear(16, 3))
    x, y, s = torch.rand(64, 20), torch.arange(64) % 3, torch.randn(64, 20)
    options = {"operator": "first_order", "center": "none", "step": 0.01}
    whole = taser.SteinPenalty(**options)(model, x, y, s).item()  # type: ignore[arg-type]
    part = taser.SteinPenalty(fraction=fraction, **options)  # type: ignore[arg-type]
    if attached:
        part.attach(model)
    draws = []
    for _ in range(200):
        if attached:
            model(x)
        draws.append(part(model, x, y, s).item())
    part.release()
    found = torch.tensor(draws)
    assert abs(found.mean() - whole) < 4.5 * found.std() / 200**0.5
    assert found.std() > 0


def test_norms_in_evaluation_mode_keep_their_statistics() -> None:
    case = cases.case("batchnorm")
    expected = penalty_of(case.model, case, "reverse", "running")
    torch.testing.assert_close(penalty_of(case.model, case, "reverse"), expected)


def test_an_operation_in_place_at_the_start_leaves_the_inputs_alone() -> None:
    case = cases.case("batchnorm")
    x, values = case.x.clone(), []
    for inplace in (False, True):
        model = nn.Sequential(nn.ReLU(inplace=inplace), case.model).train()
        values.append(taser.SteinPenalty(backend="reverse")(model, x, case.y, case.s))
        assert torch.equal(x, case.x)
    torch.testing.assert_close(values[0], values[1])


@pytest.mark.parametrize("backend", ["difference", "reverse"])
def test_half_inputs_have_statistics_in_full_precision(backend: Backend) -> None:
    case = cases.case("batchnorm")
    model, x, s = case.model.float().train(), case.x.bfloat16(), case.s.float()
    half, full = (taser.SteinPenalty(backend=backend)(model, t, case.y, s) for t in (x, x.float()))
    torch.testing.assert_close(half, full, rtol=0, atol=0)


def test_dropout_rests_while_statistics_are_taken() -> None:
    case = cases.case("batchnorm")
    expected = penalty_of(case.model.train(), case, "reverse")
    dropping = nn.Sequential(nn.Dropout(0.5), case.model).train()
    torch.testing.assert_close(penalty_of(dropping, case, "reverse"), expected)


@pytest.mark.parametrize("how", ["wrapped", "in place", "inside"])
def test_a_compiled_norm_is_called_as_before(how: str) -> None:
    case = cases.case("batchnorm")
    expected = penalty_of(case.model.train(), case, "difference")
    model = case.model
    if how == "in place":
        model.compile(backend="eager")
    else:
        model = torch.compile(model, backend="eager")  # type: ignore[assignment]
    if how == "inside":
        model = nn.Sequential(nn.Identity(), model)
    torch.testing.assert_close(penalty_of(model, case, "difference"), expected)
    with taser.SharedPass(model) as shared:
        model(case.x)
    penalty = taser.SteinPenalty(backend="difference", probes=2, step=0.01)
    torch.testing.assert_close(penalty(model, case.x, case.y, case.s, shared=shared), expected)


@pytest.mark.parametrize("kind", ["subclass", "synchronised"])
def test_kinds_of_batchnorm_are_treated_alike(kind: str) -> None:
    class Own(nn.BatchNorm2d):
        pass

    case = cases.case("batchnorm")
    expected = penalty_of(case.model.train(), case, "reverse")
    other = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(case.model))
    if kind == "subclass":
        other = copy.deepcopy(case.model)
        other[1].__class__ = Own  # type: ignore[operator]
    torch.testing.assert_close(penalty_of(other, case, "reverse"), expected)


@pytest.mark.parametrize("shared", [False, True])
def test_a_norm_called_twice_in_a_pass_is_refused(shared: bool) -> None:
    class Twice(nn.Module):
        def __init__(self, model: nn.Sequential) -> None:
            super().__init__()
            self.begin, self.rest, self.norm = nn.BatchNorm2d(2).double(), model, model[1]

        def forward(self, x: Tensor) -> Tensor:
            x = self.rest[0](self.begin(x))
            return self.rest[2:](self.norm(2 * self.norm(x).relu()))

    case = cases.case("batchnorm")
    model = Twice(case.model).train()  # type: ignore[arg-type]
    with taser.SharedPass(model) as made:
        made.outputs = model(case.x)
    penalty = taser.SteinPenalty(backend="difference")
    with pytest.raises(UnsupportedLayer, match="of 4 channels is used twice"):
        penalty(model, case.x, case.y, case.s, shared=made if shared else None)
    penalty = taser.SteinPenalty(backend="difference", batchnorm="running")
    assert penalty(model, case.x, case.y, case.s).isfinite()
