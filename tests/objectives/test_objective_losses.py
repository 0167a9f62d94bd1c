"""What has no reference code: regression, smoothed labels, the teacher; and wrong options."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import taser
from taser import attacks
from taser.attacks import Threat
from taser.objectives import AWP, MART, OBJECTIVES, PGD, TRADES, Standard, teacher_kl


def test_squared_error() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(5, 1), torch.randn(7, 5), torch.randn(7)
    loss = Standard(task="regression")(model, x, y)
    torch.testing.assert_close(loss, (model(x)[:, 0] - y).square().mean())


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_attacked_regression_of_a_linear_model(norm: attacks.Norm) -> None:
    """max_{‖δ‖ ≤ ε} (wᵀ(x + δ) − y)² = (|wᵀx − y| + ε‖w‖_*)², with the dual norm of w."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(5, 1), torch.randn(7, 5), torch.randn(7)
    threat = Threat(norm, 0.1, None, None)
    # Each ℓ2 step of 0.04 takes what is across the gradient down to 0.1/0.14 of it.
    objective = PGD(attacks.PGD(threat, 30, 0.04), task="regression")
    loss = objective(model, x, y, generator=torch.Generator().manual_seed(0))
    residual = (model(x)[:, 0] - y).abs()
    size = model.weight.abs().sum() if norm == "linf" else model.weight.norm()
    torch.testing.assert_close(loss, (residual + 0.1 * size).square().mean(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("objective", [Standard(label_smoothing=0.1), PGD(label_smoothing=0.1)])
def test_smoothed_labels(objective: Standard | PGD) -> None:
    """(1 − a)·CE(z, y) + a·mean_j CE(z, j)."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(5, 4), torch.rand(7, 5), torch.arange(7) % 4
    log_p = model(x).log_softmax(1)
    expected = -(0.9 * log_p.gather(1, y[:, None])[:, 0] + 0.1 * log_p.mean(1)).mean()
    torch.testing.assert_close(objective.loss(model, x, y, x).total, expected)


@pytest.mark.parametrize("kind", [TRADES, MART])
def test_smoothed_labels_beside_a_kl(kind: type[TRADES] | type[MART]) -> None:
    """Only the cross-entropy changes: by a·(mean_j CE(z, j) − CE(z, y)), the KL does not."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(5, 4), torch.rand(7, 5), torch.arange(7) % 4
    x_adv = x + 0.1
    log_p = model(x if kind is TRADES else x_adv).log_softmax(1)
    change = 0.1 * (log_p.gather(1, y[:, None])[:, 0] - log_p.mean(1)).mean()
    plain, smoothed = (kind(label_smoothing=a).loss(model, x, y, x_adv) for a in (0.0, 0.1))
    torch.testing.assert_close(smoothed.total - plain.total, change, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match=r"should be in \[0, 1\]"):
        kind(label_smoothing=1.5)


def test_teacher() -> None:
    torch.manual_seed(0)
    before = torch.randn(6, 4, requires_grad=True)
    after = torch.randn(6, 4, requires_grad=True)
    value = teacher_kl(before, after)
    expected = F.kl_div(
        after.log_softmax(1), before.log_softmax(1), reduction="batchmean", log_target=True
    )
    torch.testing.assert_close(value, expected)
    value.backward()
    assert before.grad is None  # the teacher is a constant
    # ∂KL/∂z = (softmax(z) − p)/B
    torch.testing.assert_close(
        after.grad, ((after.softmax(1) - before.softmax(1)) / 6).detach(), rtol=1e-5, atol=1e-7
    )
    assert abs(teacher_kl(before, before).item()) < 1e-7


@pytest.mark.parametrize("kind", [Standard, PGD])
def test_wrong_task(kind: type) -> None:
    with pytest.raises(ValueError, match=r"task should be one of .*'regression'.*got 'ranking'"):
        kind(task="ranking")


@pytest.mark.parametrize("gamma", [0.0, -0.1, float("nan")])
def test_wrong_gamma(gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma should be positive"):
        AWP(Standard(), gamma)


def test_wrong_options_are_refused_at_construction() -> None:
    for build, message in (
        (lambda: Standard(label_smoothing=2.0), r"should be in \[0, 1\]"),
        (lambda: Standard("regression", 0.3), "no labels to smooth"),
        (lambda: PGD(task="regression", label_smoothing=0.1), "no labels to smooth"),
        (lambda: TRADES(beta=-1.0), "beta should be zero or more"),
        (lambda: MART(weight=float("nan")), "weight should be zero or more"),
    ):
        with pytest.raises(ValueError, match=message):
            build()


def test_any_attack_serves_an_objective_that_needs_no_loss_of_its_own() -> None:
    """TRADES and regression need an attack that ascends a given loss; noise ascends none."""
    noise = attacks.RandomNoise(Threat(epsilon=0.1), samples=2)
    model, x, y = (
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3)),
        torch.rand(5, 4),
        torch.arange(5) % 3,
    )
    assert float(PGD(noise)(model, x, y).detach()) > 0
    assert float(MART(inner=noise)(model, x, y).detach()) > 0
    with pytest.raises(TypeError, match=r"TRADES needs an attack that takes a loss.*RandomNoise"):
        TRADES(inner=noise)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"regression needs an attack that takes a loss"):
        PGD(noise, task="regression")


@pytest.mark.parametrize("name", ["standard", "fast", "pgd", "trades", "mart"])
def test_a_model_that_returns_no_tensor(name: str) -> None:
    linear = torch.nn.Linear(4, 3)
    model = taser.models.Wrapped(lambda x: {"logits": linear(x)}, linear)
    with pytest.raises(TypeError, match="the model should return a tensor; got dict"):
        OBJECTIVES[name]()(model, torch.rand(6, 4), torch.arange(6) % 3)
