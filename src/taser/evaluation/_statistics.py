"""Confidence intervals and tests (accuracies, paired differences, AUROC); models side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from ._record import Evaluation

LEVEL = 0.95
FEW = 20  # examples; with fewer the variance is too uncertain


@dataclass(frozen=True)
class Interval:
    """A value with the bounds of its confidence interval; fractions, not per cent."""

    value: float
    low: float
    high: float

    def excludes_zero(self) -> bool:
        """Whether the difference is significant at this level."""
        return self.low > 0 or self.high < 0


def accuracy_interval(correct: Tensor, *, level: float = LEVEL) -> Interval:
    """Exact binomial interval of an accuracy p (Clopper and Pearson, 1934).

    correct: (n,) bool, or (k, n) for k verdicts on each example (several networks, several
    corruptions), which are not independent: n is replaced by the number of independent verdicts
    with the same variance. The interval does not cover how much other networks would differ.
    """
    shares = _per_example(correct, level)
    return _share_interval(
        float(shares.mean()), shares.var() / len(shares), len(shares), shares, level
    )


def _share_interval(
    p: float, variance: float, n: float, shares: np.ndarray, level: float
) -> Interval:
    """Interval from the number of independent verdicts of this variance (Korn, Graubard, 1998).

    That number is at most n if fewer than 20 shares inform the variance.
    """
    independent = p * (1 - p) / variance if variance > 0 else n
    if min(np.count_nonzero(shares < 1), np.count_nonzero(shares > 0)) < FEW:
        independent = min(independent, n)
    bounds = probability_bounds(independent * p, independent, (1 - level) / 2)
    return Interval(p, *bounds)


def probability_bounds(count: float, drawn: float, alpha: float) -> tuple[float, float]:
    """The lower and the upper Clopper–Pearson bound of a probability, each at level 1 − alpha."""
    from scipy.stats import beta  # slow to import

    low = beta.ppf(alpha, count, drawn - count + 1) if count > 0 else 0.0
    high = beta.ppf(1 - alpha, count + 1, drawn - count) if count < drawn else 1.0
    return float(low), float(high)


def difference_interval(first: Tensor, second: Tensor, *, level: float = LEVEL) -> Interval:
    """Interval of mean(first) − mean(second) on the same examples (Newcombe, 1998).

    Both: (n,) bool, or (k, n) for k pairs of networks, as for :func:`accuracy_interval`. The share
    p that only `first` gets right and the share q that only `second` does have exact intervals; the
    bounds of p − q are √(a² + b² + 2ab·√(pq/((1−p)(1−q)))) away, with a and b the distances to the
    bounds of p and q; the last term, their correlation, is evaluated at these bounds.
    """
    _check_paired(first, second)
    shares = _per_example(first, level) - _per_example(second, level)
    # The k verdicts on an example are not independent: the number of examples per verdict.
    vote = float((shares**2).sum() / np.abs(shares).sum()) if shares.any() else 1.0
    sums = shares.clip(min=0).sum(), -shares.clip(max=0).sum()
    bounds = (probability_bounds(s / vote, len(shares) / vote, (1 - level) / 2) for s in sums)
    (p, p_low, p_high), (q, q_low, q_high) = (
        (float(s) / len(shares), *found) for s, found in zip(sums, bounds, strict=True)
    )

    def reach(p_end: float, q_end: float) -> float:
        a, b = abs(p - p_end), abs(q - q_end)
        odds = p_end * q_end / max((1 - p_end) * (1 - q_end), 1e-12)
        return float(np.sqrt(a**2 + b**2 + 2 * a * b * min(np.sqrt(odds), 1.0)))

    low, high = p - q - reach(p_low, q_high), p - q + reach(p_high, q_low)
    return Interval(p - q, max(low, -1.0), min(high, 1.0))


def retrained_interval(
    first: Sequence[Tensor], second: Sequence[Tensor], *, level: float = LEVEL
) -> Interval:
    """The same difference; the interval also covers networks trained with other seeds.

    Both: k ≥ 2 trainings, paired by seed, each (n,) or (c, n) verdicts. Their gains g_s and the
    examples' mean gains d_i scatter independently: mean ± the larger of t_{k−1}·√(var(g)/k) and
    t_{n−1}·√(var(g)/k + var(d)/n), with Student's t of k − 1 and n − 1 degrees of freedom. For two
    trainings t₁ = 12.7: unless both gains are nearly the same, two seeds cannot tell a gain from
    none. For three t₂ = 4.3, for five t₄ = 2.8.
    """
    from scipy.stats import t as student  # slow to import

    k = len(first)
    if k < 2 or len(second) != k:
        raise ValueError(f"at least two pairs of trainings are needed; got {k} and {len(second)}")
    sizes = {verdicts.shape[-1] for verdicts in (*first, *second)}
    if len(sizes) > 1:
        raise ValueError(f"networks are compared on the same examples; got {sorted(sizes)}")
    before, after = ([_per_example(v, level) for v in verdicts] for verdicts in (second, first))
    gains = np.stack(after) - np.stack(before)
    n = gains.shape[1]
    seeds, examples = gains.mean(1).var(ddof=1) / k, gains.mean(0).var() / n
    of_seeds, of_all = student.ppf((1 + level) / 2, [k - 1, max(n - 1, 1)])
    half_width = float(max(of_seeds * np.sqrt(seeds), of_all * np.sqrt(seeds + examples)))
    half_width = half_width or _unseen(n, level)  # where nothing differed, or everything
    value = float(gains.mean())
    return Interval(value, max(value - half_width, -1.0), min(value + half_width, 1.0))


def _unseen(n: int, level: float) -> float:
    """Upper bound on the probability of an event absent in n examples: 1 − (α/2)^{1/n}."""
    return 1 - ((1 - level) / 2) ** (1 / n)


def _per_example(correct: Tensor, level: float) -> np.ndarray:
    """The share of positive verdicts on each example, (n,)."""
    if correct.ndim not in (1, 2):
        raise ValueError(f"verdicts are (n,) or (k, n); got {tuple(correct.shape)}")
    if (n := correct.shape[-1]) < 1 or not 0 < level < 1:
        raise ValueError(f"at least one example and 0 < level < 1 are needed; got {n}, {level}")
    return torch.atleast_2d(correct).double().mean(0).numpy()


def _check_paired(first: Tensor, second: Tensor, wanted: str = "(n,) or (k, n)") -> None:
    if first.shape != second.shape or (wanted == "(n,)" and first.ndim != 1):
        got = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"two models are compared on the same examples, {wanted}; got {got}")


def mcnemar(first: Tensor, second: Tensor) -> float:
    """Exact two-sided p-value that two models are equally often right. Both: (n,) bool.

    Of the b + c examples where they disagree, each is as likely to favour one as the other:
    p = 2·P[Binomial(b + c, ½) ≤ min(b, c)], at most 1.
    """
    _check_paired(first, second, "(n,)")
    from scipy.stats import binomtest  # slow to import

    gained, lost = int((first & ~second).sum()), int((second & ~first).sum())
    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def auroc(inside: Tensor, outside: Tensor) -> Interval:
    """P(outside > inside) + ½ P(outside = inside), the Mann–Whitney statistic, exact with ties.

    inside: (n,), outside: (m,), of different examples. ½ is chance, 1 is perfect, 0 is perfect with
    the sign turned. The 95 % interval uses the variance of DeLong et al. (1988).

    >>> import torch
    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])).value  # three wins and a tie of 4
    0.875
    """
    for name, sample in (("inside", inside), ("outside", outside)):
        if sample.ndim != 1 or len(sample) == 0 or not bool(sample.isfinite().all()):
            got = f"{tuple(sample.shape)}, {int((~sample.isfinite()).sum())} of them not finite"
            raise ValueError(f"{name} should hold finite numbers, shape (n,); got {got}")
    low, high = (np.sort(sample.double().numpy(force=True)) for sample in (inside, outside))
    wins = _share_below(low, high), 1 - _share_below(high, low)  # of each point; sum of variances
    variance, n = sum(w.var() / len(w) for w in wins), min(len(low), len(high))
    return _share_interval(float(wins[0].mean()), variance, n, np.concatenate(wins), LEVEL)


def _share_below(ordered: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The share of `ordered` below each of the points, ties half."""
    both = (np.searchsorted(ordered, points, side) for side in ("left", "right"))
    return sum(both) / (2 * len(ordered))  # type: ignore[return-value]


@dataclass(frozen=True)
class Cell:
    """One model's accuracy in one column; best: significantly above every other model."""

    accuracy: Interval
    best: bool


@dataclass(frozen=True)
class Difference:
    """Robust accuracy of one model minus another's: paired interval, McNemar's exact test."""

    first: str
    second: str
    interval: Interval
    p_value: float


@dataclass(frozen=True)
class Comparison:
    """rows[model][column]; worst-case differences for each pair; the same n examples for all."""

    rows: dict[str, dict[str, Cell]]
    differences: tuple[Difference, ...]
    n: int

    @property
    def columns(self) -> list[str]:
        """The headings: clean, each attack, the worst case."""
        return list(next(iter(self.rows.values())))


def compare(evaluations: Mapping[str, Evaluation]) -> Comparison:
    """Clean accuracy, each attack that all evaluations share, and the worst case over these.

    A cell is best if the paired interval of its difference from every other model is positive, at
    the level 1 − 0.05/(m − 1) for m models.
    """
    shared = _shared_attacks(evaluations)
    robust = {name: e.robust_under(shared) for name, e in evaluations.items()}
    pairs = [(a, b, robust[a], robust[b]) for a, b in combinations(robust, 2)]
    found = tuple(Difference(a, b, difference_interval(*p), mcnemar(*p)) for a, b, *p in pairs)
    columns = {"clean": {name: e.clean for name, e in evaluations.items()}}
    for attack in shared:
        columns[attack] = {name: e.attacks[attack].correct for name, e in evaluations.items()}
    if len(shared) > 1:
        columns["worst case"] = robust
    level = 1 - (1 - LEVEL) / max(len(robust) - 1, 1)
    rows: dict[str, dict[str, Cell]] = {name: {} for name in robust}
    for column, verdicts in columns.items():
        for name, verdict in verdicts.items():
            rivals = [other for rival, other in verdicts.items() if rival != name]
            gains = [difference_interval(verdict, other, level=level).low for other in rivals]
            best = bool(gains) and min(gains) > 0
            rows[name][column] = Cell(accuracy_interval(verdict), best)
    return Comparison(rows, found, next(iter(evaluations.values())).n)


def _shared_attacks(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """The attacks that all models faced, with the same settings, on the same examples."""
    if not evaluations:
        raise ValueError("there is nothing to compare")
    first = next(iter(evaluations.values()))
    for name, other in evaluations.items():
        same_data = other.provenance.data == first.provenance.data
        if not same_data or other.threat != first.threat:
            what = "on other examples" if not same_data else "within another threat"
            raise ValueError(f"{name} was evaluated {what}: they cannot be compared")

    def is_shared(attack: str) -> bool:
        settings = {e.provenance.attacks.get(attack) for e in evaluations.values()}
        return len(settings) == 1 and all(attack in e.attacks for e in evaluations.values())

    shared = list(filter(is_shared, first.attacks))
    if not shared:
        tried = "; ".join(f"{name}: {', '.join(e.attacks)}" for name, e in evaluations.items())
        common = "they have no attack with the same settings in common"
        raise ValueError(f"{common} ({tried}): robustness cannot be compared")
    return shared
