"""Inputs moved and scaled into [0, 1]: the only box that pyautoattack knows."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from .protocol import Model
from .threat import Threat


@dataclass(frozen=True)
class UnitBox:
    """u = (x − low)/(high − low), which is x itself for pixels in [0, 1].

    Where the threat has no bounds, `low` and `high` lie ε beyond the data: they never bind.
    """

    low: float
    high: float

    @classmethod
    def around(cls, threat: Threat, x: Tensor) -> Self:
        """The box of this threat, or one wide enough for every point in reach of x."""
        low = float(x.min()) - threat.epsilon if threat.low is None else threat.low
        high = float(x.max()) + threat.epsilon if threat.high is None else threat.high
        return cls(low, high)

    @property
    def width(self) -> float:
        """high − low."""
        return self.high - self.low

    def into(self, x: Tensor) -> Tensor:
        """x → u."""
        return x if (self.low, self.high) == (0.0, 1.0) else (x - self.low) / self.width

    def back(self, u: Tensor) -> Tensor:
        """u → x."""
        return u if (self.low, self.high) == (0.0, 1.0) else u * self.width + self.low

    def model(self, model: Model, dtype: torch.dtype) -> Model:
        """The model as a function of u, in single precision as the package wants it.

        dtype: what the model itself takes; it gets a copy, for its first layer may work in place.
        """
        return lambda u: model(self.back(u.to(dtype)).clone()).float()

    def threat(self, threat: Threat) -> Threat:
        """The same ball, in u's units."""
        return replace(threat, epsilon=threat.epsilon / self.width, low=0.0, high=1.0)
