"""The two sides of an identity, estimated on the same samples."""

from dataclasses import dataclass

from torch import Tensor

from .estimate import Estimate


@dataclass(frozen=True)
class Sides:
    """Both sides of an identity E[left] = E[right], and their difference.

    The difference is taken sample by sample, so its standard error knows how the two sides move
    together; it is the one to test.
    """

    left: Estimate
    right: Estimate
    difference: Estimate

    def holds(self, *, z: float = 4.0) -> bool:
        """Whether the sides agree within z standard errors of their difference."""
        return self.difference.consistent_with(0.0, z=z)

    def __str__(self) -> str:
        return f"left {self.left}, right {self.right}, difference {self.difference}"


def compare(left: Tensor, right: Tensor) -> Sides:
    """Both sides from their values at the same samples, (n,) each."""
    return Sides(Estimate.of(left), Estimate.of(right), Estimate.of(left - right))
