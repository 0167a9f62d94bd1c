"""SPSA against its formula, against the true gradient, and against a network."""

import math

import pytest
import torch
from torch import nn

from attacks.victims import accuracy, digits, linear, seeded, undefended
from taser.attacks import SPSA, Norm, RestartedPGD, Threat, input_gradient, margin
from taser.attacks._threat import inside
from taser.models import Wrapped


def by_the_formula(model, x, y, samples: int, delta: float, seed: int) -> torch.Tensor:
    """ĝ = mean of [ℓ(x + δv) − ℓ(x − δv)]/(2δ)·v, one sample and one example at a time."""
    v = 2 * torch.randint(2, (samples, *x.shape), generator=seeded(seed)).to(x.dtype) - 1
    total = torch.zeros_like(x)
    for i in range(samples):
        for b in range(len(x)):
            one = y[b : b + 1]
            above = margin(model((x[b] + delta * v[i, b])[None]), one)
            below = margin(model((x[b] - delta * v[i, b])[None]), one)
            total[b] += float((above - below) / (2 * delta)) * v[i, b]
    return total / samples


@torch.no_grad()
def test_one_step_is_the_reference_formula() -> None:
    model, x = linear(classes=3).double(), torch.rand(4, 6, generator=seeded(), dtype=torch.float64)
    y = model(x).argmax(1)  # right, so that every example is attacked
    threat = Threat("linf", 0.05)
    attack = SPSA(threat, iterations=1, samples=5, delta=0.02, step_size=0.03)
    gradient = by_the_formula(model, x, y, 5, 0.02, seed=7)
    torch.testing.assert_close(attack.gradient(model, x, y, seeded(7)), gradient)
    # Adam's first step is the step size times g/(|g| + 1e-8), whatever g's size
    stepped = (x + 0.03 * gradient / (gradient.abs() + 1e-8)).clamp(0, 1)
    stepped = x + (stepped - x).clamp(-0.05, 0.05)
    worse = margin(model(stepped), y) > margin(model(x), y)
    assert worse.any()  # else nothing would be compared
    wanted = torch.where(worse[:, None], stepped, x)
    torch.testing.assert_close(attack(model, x, y, generator=seeded(7)), wanted)


def test_the_estimate_is_unbiased_and_its_error_falls_with_samples() -> None:
    d, model = 64, nn.Sequential(linear(8, 64), nn.Tanh(), linear(3, 8)).double()
    x = torch.rand(3, d, generator=seeded(), dtype=torch.float64)
    y = torch.tensor([0, 1, 2])
    true = input_gradient(model, x, y, margin)
    for samples in (64, 1024):
        estimate = SPSA(samples=samples, delta=1e-4).gradient(model, x, y, seeded()).detach()
        error = (estimate - true).norm(dim=1) / true.norm(dim=1)
        # E‖ĝ − g‖² = (d − 1)/n ‖g‖² for Rademacher v; the sum of d such squares keeps within 50 %
        expected = math.sqrt((d - 1) / samples)
        assert (error < 1.5 * expected).all()
        assert (error > expected / 1.5).all()


def test_chunks_change_nothing() -> None:
    x, y = digits(3)
    whole, parts = (
        SPSA(samples=20, chunk=chunk).gradient(undefended(), x, y, seeded()) for chunk in (1000, 13)
    )
    torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("norm", "epsilon"), [("linf", 0.3), ("l2", 1.5)])
def test_the_strong_preset_breaks_an_undefended_network(norm: Norm, epsilon: float) -> None:
    x, y = digits(60)
    threat, model = Threat(norm, epsilon), undefended()
    assert accuracy(model, x, y) > 0.9
    moved = SPSA.strong(threat)(model, x, y, generator=seeded())
    assert inside(threat, moved, x).all()
    assert accuracy(model, moved, y) < 0.02


def test_it_needs_no_gradient() -> None:
    x, y = digits(30)
    threat = Threat("linf", 0.2)

    @torch.no_grad()
    def hidden(inputs: torch.Tensor) -> torch.Tensor:
        return undefended()(inputs)

    open_ = SPSA(threat)(undefended(), x, y, generator=seeded())
    assert torch.equal(SPSA(threat)(Wrapped(hidden, undefended()), x, y, generator=seeded()), open_)
    assert accuracy(undefended(), open_, y) < 0.5 * accuracy(undefended(), x, y)


def test_the_best_iterate_is_kept() -> None:
    x, y = digits(40)
    model, threat = undefended(), Threat("linf", 0.02)
    last = torch.full((40,), -torch.inf)
    for iterations in (1, 4, 16):  # the same draws, longer: never milder
        attack = SPSA(threat, iterations=iterations, samples=8, step_size=0.5)
        loss = margin(model(attack(model, x, y, generator=seeded())), y)
        assert (loss >= last - 1e-6).all()
        last = loss


def test_broken_examples_leave_at_once() -> None:
    x, y = digits(30)
    evaluated: list[int] = []

    def counting(inputs: torch.Tensor) -> torch.Tensor:
        evaluated.append(len(inputs))
        return undefended()(inputs)

    attack = SPSA(Threat("linf", 0.4), iterations=50, samples=10, step_size=0.1)
    attack(Wrapped(counting, undefended()), x, y, generator=seeded())
    assert sum(evaluated) < 0.5 * 30 * attack.passes


def test_in_l2_the_strong_rule_finds_what_pgd_finds() -> None:
    # where Adam's steps, which forget how large each pixel's slope is, stop short
    x, y = digits(60)
    threat, model = Threat("l2", 0.4), undefended()
    pgd = accuracy(model, RestartedPGD(threat)(model, x, y, generator=seeded()), y)
    adam, momentum = (
        SPSA(threat, iterations=20, samples=64, step_size=size, rule=rule)  # type: ignore[arg-type]
        for rule, size in (("adam", 0.01), ("momentum", 0.2))
    )
    assert accuracy(model, momentum(model, x, y, generator=seeded()), y) <= pgd + 0.02
    assert accuracy(model, adam(model, x, y, generator=seeded()), y) > pgd + 0.02


@pytest.mark.parametrize("option", ["iterations", "samples", "delta", "step_size", "chunk"])
def test_wrong_options_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        SPSA(**{option: 0})
    with pytest.raises(ValueError, match="rule"):
        SPSA(rule="newton")  # type: ignore[arg-type]


@pytest.mark.parametrize(("norm", "epsilon"), [("linf", 0.5), ("l2", 0.5), ("linf", 3.0)])
def test_the_edge_of_a_wide_ball_is_reached(norm: Norm, epsilon: float) -> None:
    """The paper's step of 0.01 reaches at most 0.32 in 32 iterations."""
    threat = Threat(norm, epsilon, None, None)
    x = torch.tensor([[0.8 * epsilon, 0.0]])
    model = Wrapped(lambda x: torch.stack([x[:, 0], -x[:, 0]], 1))
    moved = SPSA(threat)(model, x, torch.tensor([0]))
    assert float(moved[0, 0]) < 0


def test_images_keep_the_step_of_the_paper() -> None:
    for norm, epsilon in (("linf", 8 / 255), ("linf", 0.15), ("l2", 1.0)):
        assert SPSA(Threat(norm, epsilon)).step_size == 0.01  # type: ignore[arg-type]


def test_outputs_in_half_precision_are_attacked() -> None:
    """As those of a model under autocast; logits near one another round alike."""
    x, y = digits(40)
    half = Wrapped(lambda x: undefended()(x).bfloat16(), undefended())
    threat = Threat("linf", 0.15)
    found = SPSA(threat, iterations=5, samples=16)(half, x, y, generator=seeded())
    assert found.dtype == x.dtype
    assert accuracy(half, found, y) < accuracy(half, x, y)
