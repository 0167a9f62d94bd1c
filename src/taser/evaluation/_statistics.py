"""How well a number tells two sets apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import torch
from torch import Tensor

DRAWS = 10_000
FEW = 20  # differing answers, below which the bootstrap is too sure of their sign


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
    """Bootstrap percentile interval of a mean of right and wrong answers.

    correct: (n,) bool, or (k, n) for k answers to each example (several networks, several
    corruptions), which are not independent: examples are drawn, with all their answers. How
    much k other networks would differ is therefore not in it.

    Where all answers agree there is nothing to resample: then the interval is the exact binomial
    one, 1 − (α/2)^{1/n} from the end ("rule of three"), and nearly so where a few do not.
    """
    shares = _per_example(correct)
    _check(len(shares), level)
    found, beyond = _mean_interval(shares, level, seed), _unseen(len(shares), level)
    return Interval(found.value, min(found.low, 1 - beyond), max(found.high, beyond))


def difference_interval(
    first: Tensor, second: Tensor, *, level: float = 0.95, seed: int = 0
) -> Interval:
    """Paired bootstrap of mean(first) − mean(second), on the same examples.

    Both: (n,) bool, or (k, n) for k pairs of networks, as for :func:`accuracy_interval`. Where no
    answer differs the interval is the exact one of how often they could, to either side. Where
    those to fewer than 20 examples do, it is widened to that of the exact sign test, in which an
    example counts by how many of the k pairs it divides; for k = 1 it excludes zero only where
    :func:`mcnemar` does.
    """
    if first.shape != second.shape:
        raise ValueError(
            "two models are compared on the same examples; got answers of shapes "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    shares = _per_example(first) - _per_example(second)
    _check(len(shares), level)
    if not shares.any():
        beyond = _unseen(len(shares), level)
        return Interval(0.0, -beyond, beyond)
    found = _mean_interval(shares, level, seed)
    if np.count_nonzero(shares) < FEW:
        pairs = len(torch.atleast_2d(first))
        votes = np.rint(shares[shares != 0] * pairs).astype(int)
        low, high = np.array(_sign_interval(votes, (1 - level) / 2)) / (pairs * len(shares))
        return Interval(found.value, min(found.low, float(low)), max(found.high, float(high)))
    return found


def retrained_interval(
    first: Sequence[Tensor], second: Sequence[Tensor], *, level: float = 0.95
) -> Interval:
    """Of the same difference, had other examples been drawn and the networks trained once more.

    Both: k ≥ 2 trainings, paired by seed, each (n,) or (c, n) answers. Their gains g_s and the
    examples' mean gains d_i scatter independently: mean ± t·√(var(g)/k + var(d)/n), with Student's
    t of the degrees of freedom that Satterthwaite (1946) gives such a sum. Two or three trainings
    tell little, and where they differ the interval is wide.
    """
    from scipy.stats import t as student  # takes a second, which `import taser` need not

    k = len(first)
    if k < 2 or len(second) != k:
        raise ValueError(f"at least two pairs of trainings are needed; got {k} and {len(second)}")
    sizes = {answers.shape[-1] for answers in (*first, *second)}
    if len(sizes) > 1:
        raise ValueError(f"all networks answer the same examples; got {sorted(sizes)} of them")
    gains = np.stack(
        [_per_example(a) - _per_example(b) for a, b in zip(first, second, strict=True)]
    )
    n = gains.shape[1]
    _check(n, level)
    seeds, examples = gains.mean(1).var(ddof=1) / k, gains.mean(0).var() / n
    both = seeds + examples
    if not both > 0:  # nothing differed, or everything: what n examples did not show
        beyond = _unseen(n, level)
    else:
        freedom = both**2 / (seeds**2 / (k - 1) + examples**2 / max(n - 1, 1))
        beyond = student.ppf((1 + level) / 2, freedom) * np.sqrt(both)
    value = float(gains.mean())
    return Interval(value, max(value - float(beyond), -1.0), min(value + float(beyond), 1.0))


def _sign_interval(votes: np.ndarray, tail: float) -> tuple[float, float]:
    """Of Σ votes, given their sizes: (2p − 1)·Σ|votes| at the exact bounds of p = P[a vote is > 0].

    votes: (m,) integers, none zero.
    """
    total = int(np.abs(votes).sum())
    low, high = _least_share(votes, tail), 1 - _least_share(-votes, tail)
    return (2 * low - 1) * total, (2 * high - 1) * total


def _least_share(votes: np.ndarray, tail: float) -> float:
    """The smallest p at which as much is gained with a chance of `tail` (Clopper, Pearson 1934)."""
    sizes, gained = np.abs(votes), int(votes[votes > 0].sum())
    low, high = 0.0, 1.0
    for _ in range(50 if gained else 0):
        p = (low + high) / 2
        low, high = (p, high) if _chance_of_gain(sizes, gained, p) < tail else (low, p)
    return low


def _chance_of_gain(sizes: np.ndarray, gained: int, p: float) -> float:
    """P[Σ sizes of those that gain ≥ gained], each with the chance p; of equal sizes binomial."""
    law = np.ones(1)  # law[s]: the chance that s is gained so far
    for size in sizes:
        law = (1 - p) * np.pad(law, (0, size)) + p * np.pad(law, (size, 0))
    return float(law[gained:].sum())


def chance_of(count: int, n: int, share: float) -> float:
    """P(Binomial(n, share) ≥ count).

    >>> round(chance_of(1, 2, 0.5), 12)
    0.75
    """
    return _chance_of_gain(np.ones(n, dtype=int), count, share)


def _unseen(n: int, level: float) -> float:
    """How often something may happen that n examples did not show: 1 − (α/2)^{1/n}."""
    return 1 - ((1 - level) / 2) ** (1 / n)


def _per_example(correct: Tensor) -> np.ndarray:
    """The share of right answers to each example, (n,)."""
    if correct.ndim not in (1, 2):
        raise ValueError(f"answers are (n,) or (k, n); got {tuple(correct.shape)}")
    return torch.atleast_2d(correct).double().mean(0).numpy()


def _mean_interval(values: np.ndarray, level: float, seed: int) -> Interval:
    """Of a mean. n draws with replacement have multinomial counts of the few values there are."""
    n = len(values)
    kinds, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(n, counts / n, DRAWS)
    low, high = np.quantile(drawn @ kinds / n, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values.mean()), float(low), float(high))


def mcnemar(first: Tensor, second: Tensor) -> float:
    """Exact two-sided p-value that two models are equally often right. Both: (n,) bool.

    Of the b + c examples where they disagree, each is as likely to favour one as the other:
    p = 2·P[Binomial(b + c, ½) ≤ min(b, c)], at most 1.
    """
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            "two models are compared on the same examples, (n,); got "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    gained, lost = int((first & ~second).sum()), int((second & ~first).sum())
    both = gained + lost
    tail = sum(comb(both, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**both)


def _check(n: int, level: float) -> None:
    if n < 1 or not 0 < level < 1:
        raise ValueError(f"at least one example and 0 < level < 1 are needed; got {n}, {level}")


CONFIDENCE = 0.95


def draws(resamples: int, size: int, generator: torch.Generator) -> Tensor:
    """How often each of `size` examples is drawn in `size` draws with replacement: (R, size)."""
    drawn = torch.randint(size, (resamples, size), generator=generator)
    ones = torch.ones(resamples, size, dtype=torch.float64)
    return torch.zeros_like(ones).scatter_add_(1, drawn, ones)


def percentiles(figures: Tensor) -> tuple[float, float]:
    """The interval that holds 95 % of a figure's resampled values, (R,)."""
    tail = (1 - CONFIDENCE) / 2
    ends = torch.tensor([tail, 1 - tail], dtype=figures.dtype)
    low, high = figures.quantile(ends).tolist()
    return low, high


def auroc(inside: Tensor, outside: Tensor, *, resamples: int = 1000, seed: int = 0) -> Interval:
    """P(outside > inside) + ½ P(outside = inside), the Mann–Whitney statistic, exact with ties.

    inside: (n,), outside: (m,). ½ is chance, 1 is perfect, 0 is perfect with the sign turned. The
    95 % bootstrap interval resamples both sets apart, so they should hold different examples.

    >>> import torch
    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])).value  # three wins and a tie of 4
    0.875
    """
    for name, sample in (("inside", inside), ("outside", outside)):
        if sample.ndim != 1 or len(sample) == 0 or not bool(torch.isfinite(sample).all()):
            raise ValueError(
                f"{name} should hold finite numbers, shape (n,); got {tuple(sample.shape)}, "
                f"{int((~torch.isfinite(sample)).sum())} of them not finite"
            )
    inside, outside = (sample.detach().cpu().double() for sample in (inside, outside))
    ordered = inside.sort().values
    # Of the ordered inside, `below` lie under each outside number and `through` at most at it.
    below = torch.searchsorted(ordered, outside)
    through = torch.searchsorted(ordered, outside, right=True)

    def area(drawn: Tensor, against: Tensor) -> Tensor:
        """For how often each example was drawn, (R, n) and (R, m): (R,)."""
        counted = torch.nn.functional.pad(drawn.cumsum(1), (1, 0))
        wins = (counted[:, below] + counted[:, through]) / 2
        return (wins * against).sum(1) / (drawn.sum(1) * against.sum(1))

    n, m = len(ordered), len(outside)
    whole = area(*(torch.ones(1, size, dtype=torch.float64) for size in (n, m)))
    generator = torch.Generator().manual_seed(seed)
    areas = area(*(draws(resamples, size, generator) for size in (n, m)))
    return Interval(float(whole), *percentiles(areas))
