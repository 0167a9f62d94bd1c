"""What the manifold study depends on."""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Config:
    """Everything that the numbers depend on.

    strengths: weights λ of the isotropic penalty; the Stein penalties get λσ². Off the curve by n,
    of variance σ², the score is about −n/σ² across it, so E(s·∇m)² ≈ E‖Π_N ∇m‖²/σ²: at equal
    strength every penalty charges the same for normal sensitivity.
    eps: the reach of the perturbations. allowance: the loss of clean accuracy that counts as none.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    strengths: tuple[float, ...] = (0.0001, 0.001, 0.01, 0.1, 1.0)
    sigma: float = 0.05
    amplitude: float = 0.4
    segments: int = 4
    examples: int = 2000
    steps: int = 150
    batch: int = 256
    width: int = 48
    rate: float = 0.04
    eps: float = 0.1
    allowance: float = 0.01

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds should be one or more different numbers; got {self.seeds}")
        growing = all(weak < strong for weak, strong in pairwise((0.0, *self.strengths)))
        if len(self.strengths) < 2 or not growing:
            raise ValueError(
                f"strengths should be two or more positive numbers that grow; got {self.strengths}"
            )
        for name in ("sigma", "amplitude", "rate", "eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} should be positive; got {getattr(self, name)}")
        for name in ("segments", "examples", "steps", "batch", "width"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} should be at least 2; got {getattr(self, name)}")
        if not 0 <= self.allowance < 1:
            raise ValueError(f"allowance should lie in [0, 1); got {self.allowance}")

    @classmethod
    def quick(cls) -> "Config":
        """Seconds instead of a minute, for a first look and for tests."""
        return cls(
            seeds=(0,), strengths=(0.0001, 0.01, 1.0), examples=600, steps=100, batch=128, width=32
        )

    def weight(self, method: str, strength: float) -> float:
        """λ of a method at a strength."""
        return strength if method == "isotropic" else strength * self.sigma**2
