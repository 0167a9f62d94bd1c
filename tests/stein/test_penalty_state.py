"""What a penalty leaves as it was, and what it keeps: modes, random states, its own past."""

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import cases
import taser


@pytest.fixture
def mlp() -> cases.Case:
    return cases.case("mlp")


@pytest.mark.parametrize(
    ("name", "backend"),
    [("batchnorm", "reverse"), ("batchnorm", "difference"), ("batchnorm", "exact"),
     ("batchnorm", "auto"), ("relu", "auto"), ("relu", "piecewise_linear")],
)  # fmt: skip
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(name: str, backend: str, fails: bool) -> None:
    case = cases.case(name)
    model = nn.Sequential(nn.Dropout(0.5), case.model)
    model.train()
    model[1][0].eval()
    model[1][0].weight.requires_grad_(False)
    model[1][3].weight.grad = torch.ones_like(model[1][3].weight)
    before = copy.deepcopy(model)
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    x = case.x.clone().requires_grad_()
    penalty = taser.SteinPenalty(backend=backend)  # type: ignore[arg-type]
    if fails:
        penalty.probe = broken_probe
        with pytest.raises(ZeroDivisionError):
            penalty(model, x, case.y, case.s)
        assert penalty.calls == 0
    else:
        penalty(model, x, case.y, case.s)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random_state)
    assert x.grad is None
    for (name, was), (_, now) in zip(
        before.state_dict().items(), model.state_dict().items(), strict=True
    ):
        assert torch.equal(was, now), name
    for was, now, gradient in zip(before.parameters(), model.parameters(), gradients, strict=True):
        assert was.requires_grad == now.requires_grad
        assert (gradient is None) == (now.grad is None)
        assert gradient is None or torch.equal(gradient, now.grad)
    assert not any(module._forward_hooks for module in model.modules())


def broken_probe(_z: Tensor, _y: Tensor | None) -> Tensor:
    raise ZeroDivisionError


def test_a_function_is_wrapped_with_its_modules() -> None:
    """A bare function is refused, because its modules cannot be put into eval mode."""
    case = cases.case("batchnorm")
    expected = taser.SteinPenalty()(case.model, case.x, case.y, case.s)
    model = case.model.train()
    before = copy.deepcopy(model.state_dict())
    wrapped = taser.models.Wrapped(lambda x: model(x), model)
    value = taser.SteinPenalty(batchnorm="running")(wrapped, case.x, case.y, case.s)
    torch.testing.assert_close(value, expected)
    taser.SteinPenalty()(wrapped, case.x, case.y, case.s)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for alone in (model.forward, partial(model), lambda x: model(x)):
        with pytest.raises(TypeError, match=r"taser\.models\.Wrapped"):
            taser.SteinPenalty()(alone, case.x, case.y, case.s)


def test_noise_in_the_model_does_not_touch_the_global_state(mlp: cases.Case) -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 0.1 * torch.randn_like(x)

    state = torch.get_rng_state()
    penalty = taser.SteinPenalty(backend="reverse")
    penalty(nn.Sequential(Noisy(), mlp.model), mlp.x, mlp.y, mlp.s)
    assert torch.equal(torch.get_rng_state(), state)


def test_it_survives_pickling_and_copying(mlp: cases.Case) -> None:
    penalty = taser.SteinPenalty(backend="reverse")
    penalty(mlp.model, mlp.x, mlp.y, mlp.s)
    twins = [copy.deepcopy(penalty), pickle.loads(pickle.dumps(penalty))]  # our own bytes
    expected = penalty(mlp.model, mlp.x, mlp.y, mlp.s)
    for twin in twins:
        assert torch.equal(twin(mlp.model, mlp.x, mlp.y, mlp.s), expected)


def test_a_generator_of_the_users_is_used(mlp: cases.Case) -> None:
    def value(seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        penalty = taser.SteinPenalty(backend="reverse", generator=generator)
        return penalty(mlp.model, mlp.x, mlp.y, mlp.s).item()

    assert value(1) == value(1) != value(2)


def test_a_resumed_penalty_goes_on_as_the_first_would_have(mlp: cases.Case) -> None:
    options = {"backend": "reverse", "every": 2, "fraction": 0.5, "center": "running"}
    first = taser.SteinPenalty(**options)  # type: ignore[arg-type]
    for _ in range(3):
        first(mlp.model, mlp.x, mlp.y, mlp.s)
    second = taser.SteinPenalty(**options)  # type: ignore[arg-type]
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(4):
        one, two = (p(mlp.model, mlp.x, mlp.y, mlp.s) for p in (first, second))
        assert torch.equal(one, two)


def test_a_second_model_is_checked_anew(mlp: cases.Case) -> None:
    penalty = taser.SteinPenalty()
    penalty(mlp.model, mlp.x, mlp.y, mlp.s)
    other = cases.case("relu")
    penalty(other.model, other.x, other.y, other.s)
    assert penalty.last is not None
    assert penalty.last.backend == "piecewise_linear"


def test_repr_shows_the_choices() -> None:
    assert "operator='first_order'" in repr(taser.SteinPenalty(operator="first_order"))
