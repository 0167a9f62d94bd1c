"""Warn if the weighted penalty is below 1 % or above 1000 % of the loss."""

from torch import Tensor

from taser._runtime import warn_user

STEPS = 50  # over which loss and penalty are averaged
LEAST, MOST = 0.01, 10.0  # smallest and largest share without a report
USUAL = 0.3  # about the share of λ = 0.3 with form="steepest" in the first epochs on digits


class PenaltyShare:
    """Reports once if λR is less than 1 % of the loss, or more than ten times as large.

    The means of 50 steps with one λ are compared. A smaller penalty changes little; a larger one
    dominates the loss. The report names the λ with which the share would be about 30 %.

    >>> import torch, taser
    >>> model, x, y = torch.nn.Linear(4, 3), torch.rand(8, 4), torch.arange(8) % 3
    >>> penalty, watch = taser.regularisers.GradientNorm("l1"), PenaltyShare()
    >>> loss = torch.nn.functional.cross_entropy(model(x), y)
    >>> loss = loss + watch(loss, penalty(model, x, y), 0.1)
    """

    def __init__(self) -> None:
        self.share: float | None = None  # mean of the last 50 steps
        self._weight, self._steps = 0.0, 0
        self._sums: tuple[Tensor | float, Tensor | float] = (0.0, 0.0)
        self._reported = False

    def __call__(self, loss: Tensor, penalty: Tensor, weight: float) -> Tensor:
        """λR, to be added to the loss. loss: without the penalty; penalty: R; weight: λ."""
        if report := self.add(loss, penalty, weight):
            warn_user(report)
        return weight * penalty

    def add(self, loss: Tensor, penalty: Tensor, weight: float) -> str | None:
        """Count a step; returns the report if it is due, else None."""
        if weight != self._weight:
            self._weight, self._steps, self._sums = weight, 0, (0.0, 0.0)
        if self._reported or weight <= 0:
            return None
        # Tensors: reading a number makes a GPU wait, so they are read once in 50 steps.
        self._sums = self._sums[0] + loss.detach(), self._sums[1] + penalty.detach()
        self._steps += 1
        if self._steps < STEPS:
            return None
        base, own = (float(total) for total in self._sums)
        self._steps, self._sums = 0, (0.0, 0.0)
        self.share = weight * own / base if base > 0 else None
        if self.share is None or own <= 0 or LEAST <= self.share <= MOST:
            return None
        self._reported = True
        better = float(f"{weight * USUAL / self.share:.1g}")
        size = f"{self.share:.2g} times" if self.share > 1 else f"{self.share:.2%} of"
        effect = "dominates the loss" if self.share > 1 else "changes little"
        return (
            f"the penalty times its weight is {size} the loss (mean of {STEPS} steps), so that it "
            f"{effect}: a weight of {better:g} instead of {weight:g} would make it about "
            f"{USUAL:.0%}"
        )
