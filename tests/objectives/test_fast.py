"""One-step adversarial training, against the definition of Wong, Rice and Kolter (2020)."""

import pytest
import torch
import torch.nn.functional as F

import cases
from taser.attacks import PGD, Threat
from taser.objectives import Fast, one_step_pgd
from taser.training import read_recipe, set_up


def test_the_attack_is_one_step_from_a_random_start() -> None:
    """δ = clip(δ₀ + 1.25·ε·sign ∇ℓ(x + δ₀), −ε, ε) with δ₀ uniform in the ball."""
    case, threat = cases.case("mlp"), Threat("linf", 0.1, None, None)
    objective = Fast(one_step_pgd(threat))
    found = objective.attack(case.model, case.x, case.y, generator=torch.Generator().manual_seed(0))
    start = torch.rand(case.x.shape, generator=torch.Generator().manual_seed(0), dtype=case.x.dtype)
    delta = ((2 * start - 1) * 0.1).requires_grad_()
    F.cross_entropy(case.model(case.x + delta), case.y, reduction="sum").backward()
    assert delta.grad is not None
    x_adv = (delta.detach() + 0.125 * delta.grad.sign()).clamp(-0.1, 0.1)
    torch.testing.assert_close(found, case.x + x_adv)
    loss = objective(case.model, case.x, case.y, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loss, F.cross_entropy(case.model(found), case.y))


@pytest.mark.parametrize(
    ("given", "expected"), [([], 1.25 * 0.15), (["objective.step_size=0.1"], 0.1)]
)
def test_the_recipe_takes_one_step_whatever_steps_says(given: list[str], expected: float) -> None:
    config = read_recipe(
        "digits/pgd",
        ["objective.name=fast", "objective.epsilon=0.15", "objective.step_size=null", *given],
    )
    objective = set_up(config).learner.objective
    assert isinstance(objective, Fast)
    assert isinstance(objective.inner, PGD)
    assert (objective.inner.steps, objective.inner.effective_step_size) == (
        1,
        pytest.approx(expected),
    )
