"""A model that is attacked is the same afterwards, in every respect."""

import copy

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
    RaySearch,
    RestartedPGD,
    Threat,
    Transfer,
)
from taser.evaluation._attack_loop import Differentiable
from taser.models import Wrapped
from taser.stein._model_state import eval_mode

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


def test_eval_mode_puts_everything_back_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    with eval_mode(model, freeze=True):
        assert not model.training
        assert not any(p.requires_grad for p in model.parameters())
    with pytest.raises(RuntimeError, match="shapes"), eval_mode(model, freeze=True):
        model(torch.ones(1, 3))
    assert model.training
    assert model[1].training
    assert all(p.requires_grad for p in model.parameters())


def test_eval_mode_reaches_a_module_through_wrapped_functions() -> None:
    model = nn.Dropout()
    for wrapped in (
        Wrapped(lambda x: model(x), model),
        Differentiable(Wrapped(lambda x: model(x), model)),
    ):
        with eval_mode(wrapped, freeze=True):
            assert not model.training
        assert model.training


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: getattr(a, "name", "training pgd"))
def test_a_function_is_no_model(attack: Attack) -> None:
    if isinstance(attack, Transfer):
        pytest.skip("it does not call the model")
    model = undefended()
    x, y = digits(4)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module.*got function.*taser\.models\.Wrapped"):
        attack(lambda x: model(x), x, y, generator=seeded())


@pytest.mark.parametrize(
    "attack", [*ATTACKS[:-1], RaySearch(THREAT, trials=2), ATTACKS[-1]],
    ids=lambda a: getattr(a, "name", "training pgd"),
)  # fmt: skip
def test_a_model_that_returns_no_tensor_is_named(attack: Attack) -> None:
    linear = nn.Linear(4, 3)
    model = Wrapped(lambda x: {"logits": linear(x)}, linear)
    if isinstance(attack, Transfer):
        attack = Transfer(attack.attack, model)
    with pytest.raises(TypeError, match="the model should return a tensor; got dict"):
        attack(model, torch.rand(6, 4), torch.arange(6) % 3)
