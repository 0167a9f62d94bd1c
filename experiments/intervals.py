"""How often the intervals of taser.evaluation hold the truth, by simulation.

    python experiments/intervals.py            # a minute; --studies 2000 for more

The nominal level is 95 %. With S studies the standard error is √(0.95·0.05/S): 0.5 % for 2000.
"""

import argparse

import numpy as np
import torch
from scipy.stats import binom, norm

from taser.evaluation import accuracy_interval, difference_interval, retrained_interval
from taser.evaluation._statistics import auroc


def of_accuracy(p: float, n: int) -> float:
    """Exactly: the probability of the counts whose interval holds p."""
    counts = np.arange(n + 1)[binom.pmf(np.arange(n + 1), n, p) > 1e-12]
    found = [accuracy_interval(torch.arange(n) < int(count)) for count in counts]
    return float(binom.pmf(counts, n, p) @ np.array([i.low <= p <= i.high for i in found]))


def of_difference(gained: float, lost: float, n: int, studies: int, k: int = 1) -> float:
    """k networks each, which differ on the same hard examples: (1 + alike)/2 of them together."""
    rng, hits = np.random.default_rng(0), 0
    cuts = norm.ppf([gained, gained + lost])
    for _ in range(studies):
        shared = rng.standard_normal(n)
        own = (3 * shared + rng.standard_normal((k, n))) / 10**0.5 if k > 1 else shared[None]
        first = torch.from_numpy((own < cuts[0]) | (own > norm.ppf(0.8)))
        second = torch.from_numpy(((own >= cuts[0]) & (own < cuts[1])) | (own > norm.ppf(0.8)))
        found = difference_interval(first, second)
        hits += found.low <= gained - lost <= found.high
    return hits / studies


def of_auroc(n: int, m: int, shift: float, scale: float, studies: int, *, ties: bool) -> float:
    """Normal scores, inside N(0, 1) and outside N(shift, scale²), in steps of a half if tied."""
    rng, hits = np.random.default_rng(0), 0

    def draw(count: int, mean: float, deviation: float) -> torch.Tensor:
        values = torch.from_numpy(mean + deviation * rng.standard_normal(count))
        return (2 * values).round() / 2 if ties else values

    if ties:
        truth = auroc(draw(200_000, 0, 1), draw(200_000, shift, scale)).value
    else:
        truth = float(norm.cdf(shift / (1 + scale**2) ** 0.5))
    for _ in range(studies):
        found = auroc(draw(n, 0, 1), draw(m, shift, scale))
        hits += found.low <= truth <= found.high
    return hits / studies


def of_retrained(k: int, scatter: float, n: int, studies: int) -> tuple[float, float]:
    """Coverage with k seeds whose gains scatter about five points, and the mean half-width."""
    rng, hits, widths = np.random.default_rng(0), 0, 0.0
    for _ in range(studies):
        hard = rng.random(n)  # of an example, alike for all networks
        gains = 0.05 + scatter * rng.standard_normal(k)
        noise = 0.1 * rng.standard_normal((2, k, n))
        second = [torch.from_numpy(hard < 0.5 + e) for e in noise[0]]
        first = [torch.from_numpy(hard < 0.5 + g + e) for g, e in zip(gains, noise[1], strict=True)]
        found = retrained_interval(first, second)
        hits += found.low <= 0.05 <= found.high
        widths += (found.high - found.low) / 2
    return hits / studies, widths / studies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=2000)
    studies = parser.parse_args().studies
    print("accuracy (exact)")
    for p in (0.5, 0.9, 0.985, 0.998):
        print(f"  p={p}", *(f"n={n}: {100 * of_accuracy(p, n):.1f}" for n in (100, 300, 1000)))
    print("paired difference")
    for gained, lost in ((0.0, 0.0), (0.01, 0.0), (0.02, 0.01), (0.1, 0.05), (0.3, 0.25)):
        for k in (1, 3):
            shares = [of_difference(gained, lost, n, studies, k) for n in (100, 300, 1000)]
            print(f"  gained {gained}, lost {lost}, k={k}", *(f"{100 * s:.1f}" for s in shares))
    print("AUROC")
    for shift, scale in ((0.0, 1.0), (0.8, 1.0), (2.0, 1.0), (3.0, 1.0), (0.0, 3.0), (2.0, 3.0)):
        for ties in (False, True):
            sizes = ((30, 30), (100, 80), (500, 100))
            shares = [of_auroc(n, m, shift, scale, studies, ties=ties) for n, m in sizes]
            text = " ".join(f"{100 * s:.1f}" for s in shares)
            print(f"  shift {shift}, scale {scale}{', ties' * ties}: {text}")
    print("other seeds (coverage, mean half-width in points)")
    for k in (2, 3, 5):
        for scatter in (0.005, 0.02, 0.08):
            share, width = of_retrained(k, scatter, 300, studies)
            print(f"  k={k}, scatter {scatter}: {100 * share:.1f}, ±{100 * width:.1f}")


if __name__ == "__main__":
    main()
