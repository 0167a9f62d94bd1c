"""What the toy regression says, in sentences that are put together from its numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from taser.studies.toy1d import Method, Result, theory

PAPER: dict[tuple[Method, float], tuple[float, float]] = {
    ("none", 0.0): (4.19e-05, 1.267),
    ("l2", 1e-4): (2.37e-04, 5.335),
    ("l2", 1e-3): (1.80e-03, 5.407),
    ("l2", 1e-2): (1.29e-02, 1.158),
    ("l2", 1e-1): (6.00e-02, 2.546),
    ("taser", 1e-4): (1.85e-06, 1.225),
    ("taser", 1e-3): (2.68e-05, 1.245),
    ("taser", 1e-2): (5.95e-04, 1.336),
    ("taser", 1e-1): (2.04e-02, 0.540),
}
"""(regulariser, λ) → errors in distribution and on the wide grid: one run each, as published."""

NAMES: dict[Method, str] = {"none": "no regulariser", "l2": "ℓ2", "taser": "TASER"}


@dataclass(frozen=True)
class Comparison:
    """The regularisers on one grid: medians over the seeds, and pairs of one λ and one seed.

    l2, taser: one median for each λ; zero: the error of a forecast of zero; pairs: how many pairs
    there are; taser_below_l2, taser_below_none: in how many of them TASER's error is the smaller.
    """

    none: float
    l2: tuple[float, ...]
    taser: tuple[float, ...]
    zero: float
    pairs: int
    taser_below_l2: int
    taser_below_none: int


def compare(result: Result, half_width: float) -> Comparison:
    """What the fits say on the grid ±half_width."""
    weights = result.config.weights
    none = result.ood("none", 0.0, half_width)
    l2 = [result.ood("l2", weight, half_width) for weight in weights]
    taser = [result.ood("taser", weight, half_width) for weight in weights]
    x = np.array(result.x)
    return Comparison(
        none=median(none),
        l2=tuple(map(median, l2)),
        taser=tuple(map(median, taser)),
        zero=float(np.square(np.sin(x[np.abs(x) <= half_width + 1e-9])).mean()),
        pairs=len(weights) * len(none),
        taser_below_l2=int((np.array(taser) < np.array(l2)).sum()),
        taser_below_none=int((np.array(taser) < np.array(none)).sum()),
    )


def paper_factor(result: Result, half_width: float) -> float:
    """exp of the mean |log(ours / paper's)| over the rows that both have: 1 if all agree."""
    rows = [row for row in result.config.rows if row in PAPER]
    logs = [math.log(median(result.ood(*row, half_width)) / PAPER[row][1]) for row in rows]
    return math.exp(sum(map(abs, logs)) / len(logs))


def headline(result: Result) -> float:
    """The half width whose errors come nearest to the paper's."""
    return min(result.config.half_widths, key=lambda width: paper_factor(result, width))


def in_short(result: Result) -> str:
    """One sentence for a reader in a hurry."""
    width = headline(result)
    seen = compare(result, width)
    share, best = seen.taser_below_l2 / seen.pairs, min(seen.taser)
    outcome = "usually errs less" if share > 0.75 else "errs less" if share > 0.5 else "errs more"
    against = "better" if best < seen.none else "no better"
    return (
        f"In short: outside its data the network with TASER {outcome} than the one with ℓ2 "
        f"({seen.taser_below_l2} of {seen.pairs} pairs on ±{width:g}); with its best λ it is "
        f"{against} than no regulariser ({best:.2f} against {seen.none:.2f}). A forecast of zero "
        f"everywhere scores {seen.zero:.2f}: "
        f"{'it takes more to continue the sine' if best > 0.5 * seen.zero else 'TASER beats it'}."
    )


def against_l2(result: Result) -> str:
    """On which grids TASER's median is the smaller at every λ, and where it is not."""
    weights, always, lost = result.config.weights, [], []
    for width in result.config.half_widths:
        seen = compare(result, width)
        worse = [w for w, t, l2 in zip(weights, seen.taser, seen.l2, strict=True) if t >= l2]
        if worse:
            lost.append(f"±{width:g} at λ = {_list(worse)}")
        else:
            always.append(width)
    shared = [w for w in weights if ("l2", w) in PAPER]
    theirs = [w for w in shared if PAPER["taser", w][1] >= PAPER["l2", w][1]]
    return (
        f"By medians it is the smaller at every λ on {_grids(always)}; ℓ2 does as well or better "
        f"on {'; '.join(lost) or 'no grid'} (in the paper's table at λ = {_list(theirs)})."
    )


def steadier(result: Result) -> str:
    """On which grids TASER moves less with λ, by ratio and by difference."""
    grids = [(w, compare(result, w)) for w in result.config.half_widths]
    ratio = [w for w, s in grids if max(s.taser) / min(s.taser) < max(s.l2) / min(s.l2)]
    span = [w for w, s in grids if max(s.taser) - min(s.taser) < max(s.l2) - min(s.l2)]
    return (
        f"By the ratio of highest to lowest, TASER is the steadier on {_grids(ratio)}; by their "
        f"difference, on {_grids(span)}."
    )


def none_wins(result: Result) -> str:
    """On which grids doing nothing is as good as the best λ."""
    grids = [(w, compare(result, w)) for w in result.config.half_widths]
    return (
        "No regulariser is as good as ℓ2 with its best λ on "
        f"{_grids([w for w, s in grids if s.none <= min(s.l2)])}, and as good as TASER with its "
        f"best λ on {_grids([w for w, s in grids if s.none <= min(s.taser)])}."
    )


def agreement(result: Result) -> str:
    """At which λ the error in distribution is that of the exact minimiser."""
    weights = result.config.weights
    ratio = {w: _median_id(result, "taser", w) / theory(w) for w in weights}
    near = [w for w in weights if abs(ratio[w] - 1) <= 0.1]
    far = [f"{w:g} ({ratio[w]:.1f} times)" for w in weights if w not in near]
    floor = f"training alone leaves {_median_id(result, 'none', 0.0):.1e}"
    return f"TASER is within 10 % of theory at λ = {_list(near)}" + (
        f", not at λ = {', '.join(far)}; {floor}." if far else "."
    )


def against_zero(result: Result) -> str:
    """What the smallest error is worth, beside a forecast that knows nothing."""
    width = headline(result)
    zero = compare(result, width).zero
    errors = {row: median(result.ood(*row, width)) for row in result.config.rows}
    method, weight = best = min(errors, key=lambda row: errors[row])
    above = sum(error > zero for error in errors.values())
    name = f"{NAMES[method]} at λ = {weight:g}" if weight else NAMES[method]
    return (
        f"A forecast of zero everywhere scores {zero:.3f} on ±{width:g}; {above} of {len(errors)} "
        f"rows score worse. The best, {name}, scores {errors[best]:.3f}"
        + (": no row follows sin x that far out." if errors[best] > 0.5 * zero else ".")
    )


def equal_fit(result: Result) -> list[str]:
    """Each TASER row beside the ℓ2 row that fits about as well, within a factor of three."""
    weights, width = result.config.weights, headline(result)
    lines = []
    for weight in weights:
        own = _median_id(result, "taser", weight)
        apart = {w: abs(math.log(_median_id(result, "l2", w) / own)) for w in weights}
        near = min(weights, key=lambda w: apart[w])
        if apart[near] <= math.log(3):
            lines.append(
                f"TASER at λ = {weight:g} ({own:.1e} in distribution) has "
                f"{median(result.ood('taser', weight, width)):.3f} on the grid, ℓ2 at λ = {near:g} "
                f"({_median_id(result, 'l2', near):.1e}) has "
                f"{median(result.ood('l2', near, width)):.3f}"
            )
    if not lines:
        return []
    return [f"The same λ is not the same strength. At about equal fit: {'; '.join(lines)}."]


def changes(weights: Sequence[float], errors: Sequence[float], base: float) -> str:
    """Each error against `base`, as a percentage with its λ."""
    each = (f"{e / base - 1:+.1%} (λ = {w:g})" for w, e in zip(weights, errors, strict=True))
    return ", ".join(each).replace("-", "−").replace("%", " %")


def extent(errors: Sequence[float]) -> str:
    """Lowest and highest, and their ratio."""
    low, high = min(errors), max(errors)
    return f"{low:.3g} to {high:.3g} (a factor of {high / low:.1f})"


def _median_id(result: Result, method: Method, weight: float) -> float:
    return median(fit.id_mse for fit in result.of(method, weight))


def in_distribution(result: Result, method: Method, weight: float) -> str:
    """A row's error on fresh draws of N(0, 1)."""
    return spread([fit.id_mse for fit in result.of(method, weight)], ".2e")


def spread(values: Sequence[float], form: str) -> str:
    """Median (lowest–highest)."""
    return f"{median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def published(row: tuple[Method, float], column: int) -> str:
    """The paper's error in distribution (column 0) or on its wide grid (1), or a dash."""
    if row not in PAPER:
        return "–"
    return f"{PAPER[row][column]:{('.2e', '.3f')[column]}}"


def _list(weights: Sequence[float]) -> str:
    return ", ".join(f"{weight:g}" for weight in weights) or "none"


def _grids(widths: Sequence[float]) -> str:
    return ", ".join(f"±{width:g}" for width in widths) or "no grid"
