"""What every attack is: a threat to search, a loss to ascend, and the worst points found."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taser._runtime import full_precision, noise_like, rows_like

Norm = Literal["linf", "l2"]
Rng = torch.Generator | None


@dataclass(frozen=True)
class Threat:
    """{x' : ‖x' − x‖ ≤ ε} in ℓ∞ or ℓ2, inside [low, high] (None: unbounded, for tables).

    >>> Threat("linf", "8/255").epsilon
    0.03137254901960784
    """

    norm: Norm = "linf"
    epsilon: float = 8 / 255
    low: float | None = 0.0
    high: float | None = 1.0

    def __post_init__(self) -> None:
        if self.norm not in get_args(Norm):
            raise ValueError(f"norm should be one of {get_args(Norm)}; got {self.norm!r}")
        object.__setattr__(self, "epsilon", fraction(self.epsilon))
        check_positive(self, "epsilon")
        low, high = self.low, self.high
        is_range = low is not None and high is not None and -math.inf < low < high < math.inf
        if not (is_range or (low is None and high is None)):
            wanted = "low and high should be finite with low < high, or both None"
            raise ValueError(f"{wanted}; got {low} and {high}")
        if (self.norm, low, high) == ("linf", 0.0, 1.0) and self.epsilon > 1.0:
            wide = f"{self.epsilon:g}"
            raise ValueError(f"epsilon={wide} is wider than [0, 1]; did you mean {wide}/255?")

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The nearest allowed point (for ℓ2: into the ball, then into the box). (B, *) → (B, *)."""
        change = x_adv - x
        if self.norm == "linf":
            change = change.clamp(-self.epsilon, self.epsilon)
        else:
            change = change * (self.epsilon / lengths(change).clamp_min(1e-12)).clamp_max(1.0)
        return self.into_box(x + change)

    def into_box(self, x: Tensor) -> Tensor:
        """x with every coordinate in [low, high]."""
        return x if self.low is None else x.clamp(self.low, self.high)

    def box_around(self, x: Tensor) -> tuple[float, float]:
        """low and high; without bounds, those of the ball around x, which never bind."""
        low = float(x.min()) - self.epsilon if self.low is None else self.low
        return low, float(x.max()) + self.epsilon if self.high is None else self.high

    def ascent(self, gradient: Tensor) -> Tensor:
        """The step of unit length that raises a linear function most: sign(g), or g/‖g‖₂."""
        if self.norm == "linf":
            return gradient.sign()
        return gradient / lengths(gradient).clamp_min(1e-12)

    def random(self, x: Tensor, generator: Rng = None) -> Tensor:
        """A point drawn evenly from the ball around each x, put into the box. (B, *) → (B, *)."""
        if self.norm == "linf":
            change = 2 * torch.rand(x.shape, dtype=x.dtype, device=x.device, generator=generator)
            change = self.epsilon * (change - 1)
        else:
            way = noise_like(x, generator)
            radius = torch.rand(len(x), dtype=x.dtype, device=x.device, generator=generator)
            radius = rows_like(radius.pow(1 / x[0].numel()), x)
            change = self.epsilon * radius * way / lengths(way).clamp_min(1e-12)
        return self.into_box(x + change)

    def rms_epsilon(self, shape: Sequence[int]) -> float:
        """The root mean square, over coordinates, of a change of length ε to inputs of this shape.

        >>> Threat("linf", 0.1).rms_epsilon((3, 2, 2)), Threat("l2", 2.0).rms_epsilon((4,))
        (0.1, 1.0)
        """
        return self.epsilon / (math.prod(shape) ** 0.5 if self.norm == "l2" else 1.0)

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """‖x_adv − x‖ of each example, in this norm: (B,)."""
        change = (x_adv - x).flatten(1)
        return change.abs().amax(1) if self.norm == "linf" else change.norm(dim=1)

    def __str__(self) -> str:
        return f"{'ℓ∞' if self.norm == 'linf' else 'ℓ2'} ε={shown(self.epsilon)}"


def lengths(change: Tensor) -> Tensor:
    """The ℓ2 norm of each example, shaped to multiply it: (B, 1, …)."""
    return rows_like(change.flatten(1).norm(dim=1), change)


def fraction(value: float | str) -> float:
    """A number, or one written as "8/255".

    >>> fraction("0.5"), fraction("2/255") == 2 / 255
    (0.5, True)
    """
    if not isinstance(value, str):
        return float(value)
    try:
        return float(Fraction(value.replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"a number or a fraction such as 8/255 is needed; got {value!r}") from None


def shown(value: float) -> str:
    """ε as people write it: 8/255 rather than 0.0314."""
    short, of_255 = f"{value:g}", round(value * 255)
    is_pixel = of_255 > 0 and value < 0.999 and abs(value * 255 - of_255) < 1e-4
    return f"{of_255}/255" if is_pixel and len(short) > 5 else short


def inside(threat: Threat, x_adv: Tensor, x: Tensor) -> Tensor:
    """True where a point is in the ball around x and in the box, up to rounding. (B, *) → (B,)."""
    # x ± ε in float32 is off by half a unit in the last place of x.
    rounding = 2 * torch.finfo(x.dtype).eps * x.abs().flatten(1).amax(1) + 1e-5 * threat.epsilon
    close = threat.distance(x_adv, x) <= threat.epsilon + rounding
    boxed = (x_adv - threat.into_box(x_adv)).abs().flatten(1).amax(1) <= rounding
    return close & boxed  # NaN is in no ball


Model = Callable[[Tensor], Tensor]
"""(B, *) → logits (B, C)."""


def outputs_of(model: Model, x: Tensor) -> Tensor:
    """model(x), which has to be a tensor."""
    outputs: object = model(x)
    if not isinstance(outputs, Tensor):
        wrapped = "taser.models.Wrapped(lambda x: model(x)[…], model) makes it one that does"
        raise TypeError(
            f"the model should return a tensor; got {type(outputs).__name__}: {wrapped}"
        )
    return outputs


AttackLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, y) → (B,): larger is worse for the model."""


@runtime_checkable
class Attack(Protocol):
    """A search for a wrong answer inside a threat's ball; yours needs no base class.

    name: what records call it. It may warn with :class:`AttackWarning`s, and have `passes`, the
    forward passes that an example costs at most, a backward pass counting two, for progress bars.
    """

    @property
    def name(self) -> str: ...

    @property
    def threat(self) -> Threat: ...

    def __call__(self, model: Model, x: Tensor, y: Tensor, *, generator: Rng = None) -> Tensor:
        """Adversarial inputs, (B, *), detached. x: (B, *); y: (B,), class numbers."""


@runtime_checkable
class LossAttack(Attack, Protocol):
    """An attack that ascends a loss of the caller's choice, by default its own: PGD, FGSM, …"""

    @property
    def loss(self) -> AttackLoss: ...

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *,
        loss: AttackLoss | None = None, generator: Rng = None,
    ) -> Tensor:  # fmt: skip
        """Adversarial inputs, (B, *), detached. x: (B, *); y: (B,)."""


class AttackWarning(UserWarning):
    """Something about a model that makes an attack's result doubtful."""


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """CE(z, y). logits: (B, C) → (B,)."""
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{j≠y} z_j − z_y: positive when the model errs; unlike CE it cannot saturate. (B,)."""
    own = logits.gather(1, y[:, None])[:, 0]
    others = logits.masked_fill(F.one_hot(y, logits.shape[1]).bool(), -torch.inf)
    return others.amax(1) - own


def kl_divergence(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """KL(softmax(p) ‖ softmax(q)) of each example, in full precision: (B, C), (B, C) → (B,)."""
    p, q = (full_precision(logits).log_softmax(1) for logits in (p_logits, q_logits))
    return (p.exp() * (p - q)).sum(1)


def kl_from(clean: Tensor) -> AttackLoss:
    """KL(softmax(clean) ‖ softmax(z)), the loss that TRADES attacks. clean: (B, C) logits."""
    clean = clean.detach()
    return lambda logits, _: kl_divergence(clean, logits)


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """(f(x) − y)², averaged over what is predicted for one example. (B,)."""
    return (outputs.reshape(y.shape) - y).square().reshape(len(y), -1).mean(1)


class WorstPoints:
    """The worst points found so far, x: (B, *), and their margin loss, (B,); x itself at first."""

    def __init__(self, model: Model, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x.detach().clone(), y
        with torch.no_grad():
            self.loss = margin(model(self.x.clone()), y)  # a first layer may work in place

    robust = property(lambda self: (~(self.loss > 0)).nonzero()[:, 0])

    def update(self, rows: Tensor, x_adv: Tensor, logits: Tensor) -> Tensor:
        """Keep worse points, (R, *), of the examples `rows`; True where one is still robust."""
        loss = margin(logits.detach(), self.y[rows])
        worse = loss > self.loss[rows]
        self.x[rows[worse]] = x_adv.detach()[worse]
        self.loss[rows[worse]] = loss[worse]
        return ~(loss > 0)


def short_repr(attack: Any) -> str:
    """An attack's class and options; a function is shown by its name, a network by its class."""
    values = {f.name: getattr(attack, f.name) for f in fields(attack) if f.init}
    named = {k: type(v) if isinstance(v, nn.Module) else v for k, v in values.items()}
    options = (f"{k}={getattr(v, '__qualname__', None) or repr(v)}" for k, v in named.items())
    return f"{type(attack).__name__}({', '.join(options)})"


def check_positive(attack: Any, *options: str) -> None:
    """Raise unless each of these options is positive and finite; None is for a default."""
    for option in options:
        value = getattr(attack, option)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{option} should be positive and finite; got {value}")
