"""A pass that the loss made, used again: the same penalty and gradient, with less work."""

import pytest
import torch
from torch import Tensor, nn

import cases
import taser
from taser.stein._checks import Operator


def gradient(model: nn.Module, case: cases.Case, *, share: bool, **options: object) -> Tensor:
    """Of loss + penalty, in one backward pass; (P,)."""
    penalty = taser.SteinPenalty(backend="difference", **options)  # type: ignore[arg-type]
    with taser.SharedPass(model) as shared:
        shared.outputs = model(case.x)
    loss = nn.functional.cross_entropy(shared.outputs, case.y)
    loss = loss + penalty(model, case.x, case.y, case.s, shared=shared if share else None)
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


@pytest.mark.parametrize("name", ["mlp", "batchnorm", "groupnorm", "layernorm", "attention"])
def test_the_full_operator_is_the_same(name: str) -> None:
    """f(x) is given, and nothing else changes: 1/t² magnifies the rounding of float64."""
    case = cases.case(name)
    model = case.model.train()
    one, two = (gradient(model, case, share=share, step=0.01) for share in (True, False))
    torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-8 * float(two.abs().max()))


@pytest.mark.parametrize("name", ["mlp", "batchnorm"])
def test_a_one_sided_difference_is_wrong_by_the_order_of_its_step(name: str) -> None:
    case = cases.case(name)
    model = case.model.train()
    right = gradient(model, case, share=False, operator="first_order", step=1e-4)
    wrong = [
        float((gradient(model, case, share=True, operator="first_order", step=t) - right).norm())
        for t in (1e-2, 5e-3)
    ]
    assert wrong[0] > 1e-6
    assert wrong[1] == pytest.approx(wrong[0] / 2, rel=0.05)


def test_statistics_are_those_of_the_pass() -> None:
    """Of the whole batch where the penalty sees a part of it, and only of the first pass."""
    case = cases.case("batchnorm")
    model = case.model.train()
    seen: list[Tensor] = []
    norm = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with taser.SharedPass(model) as shared:
        model(case.x)
        model(case.x + 1)
    mean, var = shared.statistics[id(norm.running_mean)]
    torch.testing.assert_close(mean, seen[0].mean((0, 2, 3)))
    torch.testing.assert_close(var, seen[0].var((0, 2, 3), correction=0))
    assert mean.requires_grad
    penalty = taser.SteinPenalty(operator="first_order")
    for _ in range(2):  # the first call checks the model
        before = len(seen)
        penalty(model, case.x[:2], case.y[:2], case.s[:2], shared=shared)
    assert [len(points) for points in seen[before:]] == [4]  # both sides of two examples, no more


@pytest.mark.parametrize("operator", ["langevin", "first_order"])
def test_passes_saved(operator: Operator) -> None:
    """Two of three for statistics, f(x) and the difference at first order."""
    case = cases.case("batchnorm")
    counts = []
    for share in (False, True):
        model, rows = case.model.train(), []
        handle = model.register_forward_pre_hook(lambda _, i, rows=rows: rows.append(len(i[0])))
        penalty = taser.SteinPenalty(backend="difference", operator=operator)
        for _ in range(2):  # the first call looks at the model
            with taser.SharedPass(model) as shared:
                shared.outputs = model(case.x)
            rows.clear()
            penalty(model, case.x, case.y, case.s, shared=shared if share else None)
        handle.remove()
        counts.append(sum(rows) // len(case.x))
    assert counts == ([4, 2] if operator == "langevin" else [3, 1])


def test_the_forward_of_trades_under_no_grad_is_no_pass() -> None:
    """Its third forward updates running statistics only; those of the first are still shared."""
    case = cases.case("batchnorm")
    model, trades = case.model.train(), taser.objectives.TRADES()
    penalty, rows = taser.SteinPenalty(operator="first_order"), []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    for _ in range(2):  # the first call looks at the model
        with taser.SharedPass(model) as shared:
            shared.outputs = trades.loss(model, case.x, case.y, case.x + 0.1).clean
        before = len(rows)
        penalty(model, case.x, case.y, case.s, shared=shared)
    assert before == len(rows) - 1  # one end of the difference


def test_outputs_of_another_function_are_ignored() -> None:
    """With dropout the loss is another function than the penalty's, which is in evaluation mode."""
    case = cases.case("mlp")
    model = nn.Sequential(nn.Dropout(0.5), case.model).train()
    own, shared = (gradient_of_penalty(model, case, share=share) for share in (False, True))
    torch.testing.assert_close(own, shared, rtol=0, atol=0)


def passed(model: nn.Module, x: Tensor) -> taser.SharedPass:
    """The pass of a loss."""
    with taser.SharedPass(model) as shared:
        shared.outputs = model(x.clone())
    return shared


def test_sharing_is_checked_again_in_another_mode() -> None:
    """Accepted without dropout, which is then switched on."""
    case = cases.case("mlp")
    model = nn.Sequential(nn.Dropout(0.5), case.model).eval()
    penalty = taser.SteinPenalty(operator="first_order")
    for mode in (False, True):
        model[0].train(mode)
        value = penalty(model, case.x, case.y, case.s, shared=passed(model, case.x))
    own = taser.SteinPenalty(operator="first_order")(model, case.x, case.y, case.s)
    torch.testing.assert_close(value, own, rtol=0, atol=0)


def test_checks_of_one_model_are_not_reused_for_another() -> None:
    """Even if the first call with the second model shared nothing."""
    case = cases.case("mlp")
    dropping = nn.Sequential(nn.Dropout(0.5), case.model).train()
    penalty = taser.SteinPenalty(operator="first_order")
    penalty(case.model, case.x, case.y, case.s, shared=passed(case.model, case.x))
    own = penalty(dropping, case.x, case.y, case.s)
    shared = penalty(dropping, case.x, case.y, case.s, shared=passed(dropping, case.x))
    torch.testing.assert_close(shared, own, rtol=0, atol=0)


def test_outputs_in_half_precision_are_ignored() -> None:
    """At the first call and after others that could be shared."""
    case = cases.case("mlp")
    model, x, s = case.model.float(), case.x.float(), case.s.float()
    own = taser.SteinPenalty(operator="first_order")(model, x, case.y, s)
    half = passed(model, x)
    assert half.outputs is not None
    half.outputs = half.outputs.half()
    for calls in ([half], [passed(model, x), half]):
        penalty = taser.SteinPenalty(operator="first_order")
        values = [penalty(model, x, case.y, s, shared=shared) for shared in calls]
        torch.testing.assert_close(values[-1], own, rtol=0, atol=0)


def test_a_comparison_leaves_the_inputs_alone() -> None:
    case = cases.case("mlp")
    model, x = nn.Sequential(nn.SiLU(inplace=True), case.model), case.x.clone()
    penalty = taser.SteinPenalty(operator="first_order")
    penalty(model, x, case.y, case.s, shared=passed(model, x))
    assert torch.equal(x, case.x)


def gradient_of_penalty(model: nn.Module, case: cases.Case, *, share: bool) -> Tensor:
    torch.manual_seed(0)
    with taser.SharedPass(model) as shared:
        shared.outputs = model(case.x)
    penalty = taser.SteinPenalty(operator="first_order")
    return penalty(model, case.x, case.y, case.s, shared=shared if share else None)


def test_without_a_network_to_watch() -> None:
    case = cases.case("mlp")
    with taser.SharedPass() as shared:
        pass
    penalty = taser.SteinPenalty(operator="first_order")
    assert penalty(case.model, case.x, case.y, case.s, shared=shared) > 0


def test_a_pass_at_other_inputs_is_refused() -> None:
    case = cases.case("mlp")
    with taser.SharedPass(case.model) as shared:
        shared.outputs = case.model(case.x[:2])
    with pytest.raises(ValueError, match="2 outputs for 4 inputs"):
        taser.SteinPenalty()(case.model, case.x, case.y, case.s, shared=shared)


def test_a_pass_at_other_weights_is_refused() -> None:
    case = cases.case("mlp")
    penalty, optimiser = taser.SteinPenalty(), torch.optim.SGD(case.model.parameters(), 0.1)
    with taser.SharedPass(case.model) as shared:
        shared.outputs = case.model(case.x)
    penalty(case.model, case.x, case.y, case.s, shared=shared).backward()
    optimiser.step()
    with pytest.raises(ValueError, match="at other weights"):
        penalty(case.model, case.x, case.y, case.s, shared=shared)


class OtherInEvaluation(nn.Module):
    """No randomness, but another function in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x if self.training else x


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), OtherInEvaluation()])
def test_a_last_layer_that_is_zero_at_first_hides_nothing(layer: nn.Module) -> None:
    """Outputs of another function agree with everything then, and not after a step."""
    case = cases.case("mlp")
    head = nn.Linear(case.model(case.x).shape[1], 3).to(case.x.dtype)
    nn.init.zeros_(head.weight)
    model = nn.Sequential(case.model, layer, head).train()
    kept = taser.SteinPenalty(operator="first_order")
    kept(model, case.x, case.y % 3, case.s, shared=passed(model, case.x))
    nn.init.normal_(head.weight)
    found = kept(model, case.x, case.y % 3, case.s, shared=passed(model, case.x))
    own = taser.SteinPenalty(operator="first_order")(model, case.x, case.y % 3, case.s)
    torch.testing.assert_close(found, own, rtol=0, atol=0)


def test_a_norm_used_twice_in_a_pass_is_refused_with_a_shared_pass_too() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = nn.functional.silu(self.norm(self.linear(x)))
            return x

    model, x = Twice().train(), torch.randn(8, 4)
    penalty = taser.SteinPenalty(operator="first_order")
    with pytest.raises(taser.stein.UnsupportedLayer, match="used twice"):
        penalty(model, x, torch.arange(8) % 4, torch.randn(8, 4), shared=passed(model, x))


def test_a_part_of_the_batch_takes_its_rows_of_the_pass() -> None:
    """Rows 1 and 3, say, and not the first two, whose outputs would be noticed as others'."""
    case = cases.case("mlp")
    penalty, alone = (
        taser.SteinPenalty(operator="first_order", fraction=0.5, step=1e-6, seed=1)
        for _ in range(2)
    )
    with taser.SharedPass(case.model) as shared:
        shared.outputs = case.model(case.x)
    value = penalty(case.model, case.x, case.y, case.s, shared=shared)
    wanted = alone(case.model, case.x, case.y, case.s)
    torch.testing.assert_close(value, wanted, rtol=1e-4, atol=0)
    assert penalty._outputs_usable
