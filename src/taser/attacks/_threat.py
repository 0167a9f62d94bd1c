"""Threat models: the points that an attack may choose."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import torch
from torch import Tensor

from taser._tensors import rows_like

Norm = Literal["linf", "l2"]


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
        if not self.epsilon > 0:
            raise ValueError(f"epsilon should be positive; got {self.epsilon}")
        neither = self.low is None and self.high is None
        if not neither and (self.low is None or self.high is None or self.low >= self.high):
            raise ValueError(
                "low and high should be two numbers, the first below the second, or both None; "
                f"got {self.low} and {self.high}"
            )
        images = self.low == 0.0 and self.high == 1.0
        if images and self.norm == "linf" and self.epsilon > 1.0:
            raise ValueError(
                f"epsilon={self.epsilon:g} is wider than the pixels' range [0, 1]; "
                f"did you mean {self.epsilon:g}/255?"
            )

    def project(self, moved: Tensor, x: Tensor) -> Tensor:
        """The nearest allowed point (for ℓ2: into the ball, then into the box). (B, *) → (B, *)."""
        change = moved - x
        if self.norm == "linf":
            change = change.clamp(-self.epsilon, self.epsilon)
        else:
            change = change * (self.epsilon / lengths(change).clamp_min(1e-12)).clamp_max(1.0)
        return self.into_box(x + change)

    def into_box(self, x: Tensor) -> Tensor:
        """x with every coordinate in [low, high]."""
        return x if self.low is None else x.clamp(self.low, self.high)

    def ascent(self, gradient: Tensor) -> Tensor:
        """The step of unit length that raises a linear function most: sign(g), or g/‖g‖₂."""
        if self.norm == "linf":
            return gradient.sign()
        return gradient / lengths(gradient).clamp_min(1e-12)

    def random(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A point drawn evenly from the ball around each x, put into the box. (B, *) → (B, *)."""
        if self.norm == "linf":
            change = 2 * torch.rand(x.shape, dtype=x.dtype, device=x.device, generator=generator)
            change = self.epsilon * (change - 1)
        else:
            way = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
            radius = torch.rand(len(x), dtype=x.dtype, device=x.device, generator=generator)
            radius = rows_like(radius.pow(1 / x[0].numel()), x)
            change = self.epsilon * radius * way / lengths(way).clamp_min(1e-12)
        return self.into_box(x + change)

    def reach(self, shape: Sequence[int]) -> float:
        """The root mean square, over coordinates, of a change of length ε to inputs of this shape.

        >>> Threat("linf", 0.1).reach((3, 2, 2)), Threat("l2", 2.0).reach((4,))
        (0.1, 1.0)
        """
        return self.epsilon / (math.prod(shape) ** 0.5 if self.norm == "l2" else 1.0)

    def distance(self, moved: Tensor, x: Tensor) -> Tensor:
        """How far each example was moved, in this norm: (B,)."""
        change = (moved - x).flatten(1)
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
    """ε as people write it: 8/255 rather than 0.0314.

    >>> shown(8 / 255), shown(0.3)
    ('8/255', '0.3')
    """
    of_255 = value * 255
    is_pixel = abs(of_255 - round(of_255)) < 1e-4 and round(of_255) > 0 and value < 0.999
    short = f"{value:g}"
    return f"{round(of_255)}/255" if is_pixel and len(short) > 5 else short


def inside(threat: Threat, moved: Tensor, x: Tensor) -> Tensor:
    """True where a point is in the ball around x and in the box, up to rounding. (B, *) → (B,).

    x ± ε in float32 is off by half a unit in the last place of x: that much is allowed.
    """
    rounding = 2 * torch.finfo(x.dtype).eps * x.abs().flatten(1).amax(1) + 1e-5 * threat.epsilon
    close = threat.distance(moved, x) <= threat.epsilon + rounding
    boxed = (moved - threat.into_box(moved)).abs().flatten(1).amax(1) <= rounding
    return close & boxed  # NaN is in no ball
