"""When a count is more than luck."""

from math import comb
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attacks.victims import undefended
from taser.attacks import Threat
from taser.attacks._autoattack import EarlyExit
from taser.evaluation._audit_checks import (
    Budgeted,
    Check,
    counted,
    growing_epsilon,
    large_epsilon,
    more_restarts,
    more_steps,
    noise,
    one_step,
    random_start,
    targeted,
)


def tail(count: int, n: int, share: float) -> float:
    return sum(comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(count, n + 1))


@pytest.mark.parametrize(("n", "share"), [(1, 0.02), (30, 0.02), (100, 0.1), (200, 0.5)])
def test_the_chance_of_a_count_is_the_binomial_tail(n: int, share: float) -> None:
    for count in range(0, n + 1, max(1, n // 7)):
        found = counted(n, count, "found", allowed=share).numbers["p"]
        assert found == pytest.approx(tail(count, n, share), rel=1e-9)


@pytest.mark.parametrize(("n", "enough"), [(100, 7), (1000, 32)])
def test_a_check_fails_from_the_documented_count_on(n: int, enough: int) -> None:
    def passed(count: int) -> bool | None:
        return counted(n, count, "found").passed

    assert passed(0)
    assert passed(enough - 1)
    assert not passed(enough)
    assert not passed(n)


def test_a_difference_has_to_be_large_and_significant() -> None:
    def passed(more: int, less: int, n: int) -> bool | None:
        return counted(n, more, "only", other=less).passed

    assert passed(0, 0, 100)
    assert passed(4, 0, 100)  # four of four happens once in sixteen
    assert not passed(10, 0, 100)
    assert passed(30, 25, 100)
    assert passed(15, 0, 1000)  # significant, but a share of 1.5 % is allowed


def test_a_skipped_check_is_neither_passed_nor_failed() -> None:
    check = Check("name", None, "no reason", "why")
    assert check.status == "skipped"


@pytest.mark.parametrize("budget", [20, 200])
def test_a_budget_scales_the_checkpoints_of_the_step_size(budget: int) -> None:
    """Shares of all steps, as the package takes them of its 100."""
    attack = Budgeted("apgd-t", Threat("linf", 0.1), budget=budget)
    x = torch.rand(4, 1, 8, 8)
    y = undefended()(x).argmax(1)
    target = EarlyExit(lambda points, _: undefended()(points), x, y, attack.threat)
    found = attack._package(target, x)
    own = type(found.apgd_targeted)(undefended(), n_iter=budget, device=x.device, eps=0.1)
    for name in ("n_iter", "n_iter_2", "n_iter_min", "size_decr"):
        assert getattr(found.apgd_targeted, name) == getattr(own, name)


def test_every_comparison_can_fail() -> None:
    """Ten of a hundred that only the other attack breaks; the wrong way round it is none."""
    every, fewer = torch.ones(100).bool(), torch.arange(100) >= 10
    starts = {"clean start": every, "random start": fewer}
    target: Any = SimpleNamespace(
        n=100, steps=5, restarts=1, queries=9, threat=Threat("linf", 0.1), all_examples=every,
        after_losses=every, after_longer=fewer, after_restarts=fewer, after_gradients=every,
        classes=10, after=lambda _, right: right & fewer,
        after_pgd=lambda name, *_, **__: starts[name],
        after_epsilon={0.1: fewer, 0.2: every},
    )  # fmt: skip
    for check in (more_steps, more_restarts, random_start, growing_epsilon, noise):
        found = check(target)
        assert (found.passed, found.numbers["count"]) == (False, 10), check
    assert large_epsilon(target).numbers["count"] == 100
    target.after_longer = target.after_restarts = every
    target.after_gradients = torch.arange(100) >= 25  # between losses, ten are allowed
    assert (targeted(target).passed, targeted(target).numbers["count"]) == (False, 25)


@pytest.mark.parametrize(("one", "many", "named"), [(70, 2, True), (70, 30, False), (30, 0, False)])
def test_catastrophic_overfitting_is_named(one: int, many: int, named: bool) -> None:
    """Robust to one step, and hardly ever to many; a plain network is robust to neither."""
    target: Any = SimpleNamespace(
        n=100, threat=Threat("linf", 0.1), findings={}, all_examples=torch.ones(100).bool(),
        after_cross_entropy=torch.arange(100) < many, after=lambda *_: torch.arange(100) < one,
    )  # fmt: skip
    assert one_step(target).passed
    assert ("catastrophic overfitting" in target.findings) == named
    assert all(f"{one} %" in str(f) and f"{many} %" in str(f) for f in target.findings.values())
