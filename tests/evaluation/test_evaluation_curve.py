"""Accuracy against ε."""

import pytest
import torch

from attacks.victims import digits, undefended
from taser.attacks import FGSM, Threat
from taser.evaluation._evaluate import accuracy_curve


def test_accuracy_falls_with_epsilon_and_begins_clean() -> None:
    x, y = digits(40)
    with torch.no_grad():
        clean = float((undefended()(x).argmax(1) == y).float().mean())
    seen: list[str] = []
    curve = accuracy_curve(
        undefended(), x, y, threat=Threat("linf", 0.1), factors=(0.5, 1, 4),
        progress=lambda _done, _total, label: seen.append(label),
    )  # fmt: skip
    assert curve.epsilons == (0.0, 0.05, 0.1, 0.4)
    assert curve.accuracies[0] == pytest.approx(clean)
    assert list(curve.accuracies) == sorted(curve.accuracies, reverse=True)
    assert curve.accuracies[-1] == 0.0
    assert len(seen) == 3
    assert curve.n == 40


def test_epsilons_beyond_the_box_are_left_out() -> None:
    x, y = digits(5)
    curve = accuracy_curve(undefended(), x, y, threat=Threat("linf", 0.4), factors=(1, 2, 4),
                           attack=FGSM)  # fmt: skip
    assert curve.epsilons == (0.0, 0.4, 0.8)
    assert curve.attack == "fgsm"
