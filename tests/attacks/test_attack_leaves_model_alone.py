"""A model that is attacked is the same afterwards, in every respect."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from attacks.victims import digits, seeded, undefended
from taser.attacks import (
    FGSM,
    PGD,
    SPSA,
    Attack,
    AutoAttackPart,
    RandomNoise,
    RestartedPGD,
    Threat,
    Transfer,
)
from taser.evaluation._model_checks import differentiable
from taser.stein._model_state import eval_mode, roots

THREAT = Threat("linf", 0.1)
ATTACKS: list[Attack | PGD] = [
    PGD(THREAT),
    FGSM(THREAT),
    SPSA(THREAT, iterations=2, samples=4),
    RestartedPGD(THREAT, steps=3),
    RandomNoise(THREAT, samples=3),
    Transfer(FGSM(THREAT), undefended()),
    AutoAttackPart("apgd-ce", THREAT),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: getattr(a, "name", "training pgd"))
def test_attacks_leave_model_and_randomness_alone(attack: Attack) -> None:
    model = copy.deepcopy(undefended(norm=True)).train()
    model[4].eval()  # a mode of one's own, to be put back as well
    model[5].bias.requires_grad_(False)
    x, y = digits(8)
    model(x).sum().backward()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    modes = [module.training for module in model.modules()]
    wanted = [p.requires_grad for p in model.parameters()]
    before, kept_x = torch.get_rng_state(), x.clone()
    moved = attack(model, x, y, generator=seeded())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(gradients[name], p.grad) for name, p in model.named_parameters()
               if name in gradients and p.grad is not None)  # fmt: skip
    assert [module.training for module in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == wanted
    assert torch.equal(x, kept_x)
    assert not moved.requires_grad
    assert moved.shape == x.shape


def test_attacks_see_evaluation_mode() -> None:
    model = copy.deepcopy(undefended(norm=True))
    x, y = digits(8)
    evaluated = PGD(THREAT)(model.eval(), x, y, generator=seeded())
    assert torch.equal(PGD(THREAT)(model.train(), x, y, generator=seeded()), evaluated)


def test_quiet_puts_everything_back_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    with eval_mode(model, freeze=True):
        assert not model.training
        assert not any(p.requires_grad for p in model.parameters())
    with pytest.raises(RuntimeError, match="shapes"), eval_mode(model, freeze=True):
        model(torch.ones(1, 3))
    assert model.training
    assert model[1].training
    assert all(p.requires_grad for p in model.parameters())


def test_quiet_reaches_a_model_through_a_function() -> None:
    model = nn.Dropout()

    def call(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    with eval_mode(call, freeze=True):
        assert not model.training
    assert model.training


def test_quiet_reaches_a_model_through_functions_of_functions() -> None:
    model = nn.Dropout()
    for call in (
        differentiable(lambda x: model(x)),
        partial(lambda inner, x: inner(x), model),
        partial(lambda x, inner: inner(x), inner=model.forward),
    ):
        with eval_mode(call, freeze=True):
            assert not model.training
        assert model.training


def test_functions_that_hold_themselves_and_names_not_yet_given() -> None:
    model = nn.Dropout()

    def call(x: torch.Tensor, again: bool = False) -> torch.Tensor:
        return call(x) if again else later(x)

    assert roots(call) == []
    later = model
    assert roots(call) == [model]


GLOBAL = nn.Dropout()


class Ensemble:
    def __init__(self, *models: nn.Module) -> None:
        self.models = list(models)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.total(x)

    def total(self, x: torch.Tensor) -> torch.Tensor:
        return sum(model(x) for model in self.models)  # type: ignore[return-value]


def test_modules_behind_objects_and_names_of_the_module_are_found() -> None:
    def by_name(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(GLOBAL(x))

    one, two = nn.Dropout(), nn.Dropout()
    assert roots(by_name) == [GLOBAL]
    assert roots(Ensemble(one, two)) == [one, two]
    assert roots(Ensemble(one, two).total) == [one, two]
    assert roots(torch.nn.functional.relu) == []
