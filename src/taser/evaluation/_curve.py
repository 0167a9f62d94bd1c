"""Accuracy against ε."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from taser._progress import Progress
from taser.attacks import Attack, AttackWarning, Model, RestartedPGD, Threat

from ._attack_loop import AttackLoop
from ._record import device_of

FACTORS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True)
class Curve:
    """Accuracy at each ε, the first of which is zero; n examples, `attack` by name."""

    epsilons: tuple[float, ...]
    accuracies: tuple[float, ...]
    attack: str
    n: int


def accuracy_curve(
    model: Model,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | None = None,
    factors: Sequence[float] = FACTORS,
    attack: Callable[[Threat], Attack] | None = None,
    seed: int = 0,
    batch_size: int = 100,
    progress: Progress | None = None,
) -> Curve:
    """Accuracy under an attack at multiples of the threat's ε. x: (n, *); y: (n,).

    attack: by default PGD on the margin, 20 steps from 2 starts: cheap, and close to AutoAttack
    unless gradients are masked. A larger ball holds the smaller one, so a broken example stays
    broken.
    """
    threat = threat or Threat()
    make = attack or (lambda t: RestartedPGD(t, steps=20, restarts=2))
    threats = [t for factor in sorted(factors) if (t := _scaled(threat, factor)) is not None]
    device = device_of(model, x)
    x, y = x.to(device), y.to(device)
    loop = AttackLoop.of(model, x, y, seed, batch_size)
    correct = loop.correct(x, y).cpu()
    accuracies = [int(correct.sum()) / len(x)]
    for step, wider in enumerate(threats, 1):
        verdicts, _, findings = loop.run(make(wider), correct, key=f"curve {step}")
        for finding in dict.fromkeys(findings):
            warnings.warn(str(finding), AttackWarning, stacklevel=2)
        correct = verdicts.correct
        accuracies.append(verdicts.accuracy)
        if progress:
            progress(step, len(threats), f"{wider}, {100 * accuracies[-1]:.1f} %")
    return Curve((0.0, *(t.epsilon for t in threats)), tuple(accuracies), make(threat).name, len(x))


def _scaled(threat: Threat, factor: float) -> Threat | None:
    """The threat with another ε, or None where it would leave the box."""
    epsilon = threat.epsilon * factor
    bounded = threat.low is not None and threat.high is not None
    if bounded and threat.norm == "linf" and epsilon > threat.high - threat.low:  # type: ignore[operator]
        return None
    return replace(threat, epsilon=epsilon)
