"""What attacks and objectives leave as it was, and in which precision they compute."""

import pytest
import torch
from published import published
from torch import Tensor, nn

from taser import attacks
from taser.attacks import Threat
from taser.objectives import MART, PGD, TRADES, Objective, Standard, teacher_kl
from taser.regularisers import GradientNorm, Jacobian, Regulariser

INNER = attacks.PGD(Threat(epsilon=0.1), steps=2, step_size=0.05)
OBJECTIVES: dict[str, Objective] = {
    "standard": Standard(), "pgd": PGD(INNER), "trades": TRADES(inner=INNER),
    "mart": MART(inner=INNER),
}  # fmt: skip


def network() -> tuple[nn.Sequential, Tensor, Tensor]:
    """BatchNorm in training mode, dropout, a frozen layer, one that keeps evaluation mode."""
    ref = published("pgd", "conv")
    model = ref.model()
    model.insert(4, nn.Dropout(0.5))
    model[0].weight.requires_grad_(False)
    model[2].eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 7.0)
    return model, ref["x"], ref["y"]


def traces(model: nn.Module) -> dict[str, list]:
    """Everything that could change but should not."""
    return {
        "modes": [int(module.training) for module in model.modules()],
        "requires_grad": [int(parameter.requires_grad) for parameter in model.parameters()],
        "state": [tensor.clone() for tensor in model.state_dict().values()],
        "gradients": [p.grad.clone() for p in model.parameters() if p.grad is not None],
    }


def same(before: dict[str, list], after: dict[str, list]) -> None:
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_attack_leaves_the_model_as_it_was(name: str, norm: attacks.Norm) -> None:
    model, x, y = network()
    before = traces(model)
    inner = attacks.PGD(Threat(norm, 0.1), 2, 0.05)
    objective = Standard() if name == "standard" else type(OBJECTIVES[name])(inner=inner)  # type: ignore[call-arg]
    x_adv = objective.attack(model, x, y, generator=torch.Generator().manual_seed(0))
    same(before, traces(model))
    assert not x_adv.requires_grad
    assert (x_adv is x) == (name == "standard")


def test_an_attack_that_fails_leaves_the_model_as_it_was() -> None:
    model, x, y = network()
    before = traces(model)
    with pytest.raises(RuntimeError, match="shape"):
        PGD(INNER).attack(model, x[..., :3], y)  # the last layer does not take so few
    same(before, traces(model))


@pytest.mark.parametrize("name", ["pgd", "trades", "mart"])
def test_the_generator_is_the_only_randomness_of_an_attack(name: str) -> None:
    model, x, y = network()
    state = torch.get_rng_state()
    one, again, other = (
        OBJECTIVES[name].attack(model, x, y, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "forwards"), [("standard", 1), ("pgd", 1), ("trades", 3), ("mart", 2)]
)
def test_batchnorm_learns_from_the_loss_and_not_from_the_attack(name: str, forwards: int) -> None:
    ref = published("pgd", "conv")
    model = ref.model()
    before = int(model[1].num_batches_tracked)
    OBJECTIVES[name](model, ref["x"], ref["y"])
    assert int(model[1].num_batches_tracked) == before + forwards


@pytest.mark.parametrize("regulariser", [GradientNorm, Jacobian])
def test_a_gradient_penalty_leaves_the_model_as_it_was(regulariser: type[Regulariser]) -> None:
    model, x, y = network()
    before = traces(model)
    regulariser()(model, x, y)
    same(before, traces(model))


class Dtypes(nn.Module):
    """Outputs as half precision gives them, and proof that it was half."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 4)
        self.seen: set[torch.dtype] = set()

    def forward(self, x: Tensor) -> Tensor:
        z = self.linear(x)
        self.seen.add(z.dtype)
        return z


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_are_float32_under_autocast(name: str) -> None:
    """bfloat16 has 8 bits: the loss of the same logits in float32 is what has to come out."""
    torch.manual_seed(0)
    model, x, y = Dtypes(), torch.rand(6, 12), torch.arange(6) % 4
    x_adv = (x + 0.1).clamp(0, 1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = OBJECTIVES[name].loss(model, x, y, x_adv)
    assert model.seen == {torch.bfloat16}
    logits = {id(x): model_bf16(model, x), id(x_adv): model_bf16(model, x_adv)}
    exact = OBJECTIVES[name].loss(lambda points: logits[id(points)], x, y, x_adv)
    found, expected = ({"total": one.total, **one.parts} for one in (loss, exact))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)  # types too: float32


def model_bf16(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(x).float()


@pytest.mark.parametrize("regulariser", [GradientNorm, Jacobian])
def test_gradient_penalties_disable_autocast(regulariser: type[Regulariser]) -> None:
    torch.manual_seed(0)
    model, x, y = Dtypes(), torch.rand(6, 12), torch.arange(6) % 4
    plain = regulariser()(model, x, y)
    with torch.autocast("cpu", torch.bfloat16):
        inside = regulariser()(model, x, y)
    assert model.seen == {torch.float32}
    assert torch.equal(plain, inside)


def test_the_teacher_is_compared_in_float32() -> None:
    torch.manual_seed(0)
    before, after = torch.randn(6, 4), torch.randn(6, 4)
    half = teacher_kl(before.bfloat16(), after.bfloat16())
    assert half.dtype == torch.float32
    assert torch.equal(half, teacher_kl(before.bfloat16().float(), after.bfloat16().float()))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_model_that_begins_in_place_leaves_the_batch_to_the_attack(name: str) -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4, 3))
    x, y = torch.linspace(-1, 1, 8).view(2, 4), torch.tensor([0, 1])
    before = x.clone()
    OBJECTIVES[name].attack(model, x, y, generator=torch.Generator().manual_seed(0))
    assert torch.equal(x, before)
