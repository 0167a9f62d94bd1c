"""How sure one can be of an accuracy, and of a difference, from n examples."""

from dataclasses import dataclass
from math import comb

import numpy as np
from torch import Tensor

DRAWS = 10_000


@dataclass(frozen=True)
class Interval:
    """A value with the bounds of its confidence interval; shares, not per cent."""

    value: float
    low: float
    high: float

    def excludes_zero(self) -> bool:
        """Whether the sign is beyond doubt at this level."""
        return self.low > 0 or self.high < 0


def accuracy_interval(correct: Tensor, *, level: float = 0.95, seed: int = 0) -> Interval:
    """Bootstrap percentile interval of a mean of right and wrong answers. correct: (n,) bool.

    The mean of n draws with replacement from k right answers out of n is Binomial(n, k/n)/n, so
    that is drawn. Where all answers agree there is nothing to resample: then the interval is the
    exact binomial one, 1 − (α/2)^{1/n} from the end ("rule of three").
    """
    n, right = len(correct), int(correct.sum())
    _check(n, level)
    tail = (1 - level) / 2
    if right in (0, n):
        beyond = 1 - tail ** (1 / n)
        return Interval(right / n, 1 - beyond, 1.0) if right else Interval(0.0, 0.0, beyond)
    means = np.random.default_rng(seed).binomial(n, right / n, DRAWS) / n
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(right / n, float(low), float(high))


def difference_interval(
    first: Tensor, second: Tensor, *, level: float = 0.95, seed: int = 0
) -> Interval:
    """Paired bootstrap of mean(first) − mean(second), on the same examples. Both: (n,) bool.

    Each example differs by −1, 0 or 1; n draws with replacement have multinomial counts.
    """
    n = _paired(first, second)
    _check(n, level)
    gained, lost = _discordant(first, second)
    shares = [gained / n, lost / n, 1 - (gained + lost) / n]
    counts = np.random.default_rng(seed).multinomial(n, shares, DRAWS)
    differences = (counts[:, 0] - counts[:, 1]) / n
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    return Interval((gained - lost) / n, float(low), float(high))


def mcnemar(first: Tensor, second: Tensor) -> float:
    """Exact two-sided p-value that two models are equally often right. Both: (n,) bool.

    Of the b + c examples where they disagree, each is as likely to favour one as the other:
    p = 2·P[Binomial(b + c, ½) ≤ min(b, c)], at most 1.
    """
    _paired(first, second)
    gained, lost = _discordant(first, second)
    both = gained + lost
    tail = sum(comb(both, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**both)


def _discordant(first: Tensor, second: Tensor) -> tuple[int, int]:
    return int((first & ~second).sum()), int((second & ~first).sum())


def _paired(first: Tensor, second: Tensor) -> int:
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            "two models are compared on the same examples, (n,); got "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    return len(first)


def _check(n: int, level: float) -> None:
    if n < 1 or not 0 < level < 1:
        raise ValueError(f"at least one example and 0 < level < 1 are needed; got {n}, {level}")
