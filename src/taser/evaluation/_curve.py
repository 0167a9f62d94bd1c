"""Accuracy against ε: whether a model fades, or falls off a cliff, or never falls at all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from taser._progress import Progress
from taser.attacks import Attack, Model, RestartedPGD, Threat
from taser.attacks._threat import inside

from ._attack_loop import batches
from ._model_checks import Differentiable, prepare
from ._record import answers, device_of, generator_for

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

    attack: by default PGD on the margin, 20 steps from 2 starts: cheap, and near to AutoAttack for
    a model with honest gradients. A larger ball holds the smaller one, so what broke stays broken.
    """
    threat = threat or Threat()
    make = attack or (lambda t: RestartedPGD(t, steps=20, restarts=2))
    threats = [t for factor in sorted(factors) if (t := _scaled(threat, factor)) is not None]
    device = device_of(model, x)
    x, y = x.to(device), y.to(device)
    quick = Differentiable(prepare(model, x, y))
    standing = answers(model, x, batch_size) == y
    accuracies = [int(standing.sum()) / len(x)]
    for step, wider in enumerate(threats, 1):
        for rows in batches(standing, batch_size):
            generator = generator_for(x.device, seed, "curve", step, int(rows[0]))
            moved = make(wider)(quick, x[rows], y[rows], generator=generator)
            broken = (answers(model, moved) != y[rows]) & inside(wider, moved, x[rows])
            standing[rows[broken]] = False
        accuracies.append(int(standing.sum()) / len(x))
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
