"""TASER and the isotropic penalty over λ, each at the λ that the same clean loss allows.

    taser compare experiments/curves.yaml --jobs 2 --out out/curves
    python experiments/equal_clean.py out/curves

The variants are called "taser λ=0.1", "gradient λ=0.3" and so on; equally many of both are needed.
Writes table.md, figures.json and gains.png to out/curves/equal-clean.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from output import markdown, write
from taser.compare import Results, Row, RunResult, read_results, rows
from taser.evaluation import Interval

ALLOWED = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)  # of clean accuracy
MARK = " λ="

Pair = tuple[str, list[float], Row, Row]
"""The method, the allowances in points, TASER's row with its gain, the isotropic row."""


def pairs(results: Results) -> Iterator[Pair]:
    """One for each pair of λ that some allowances choose."""
    for method in dict.fromkeys(run.method for run in results.runs):
        runs = _comparable(results.runs, method)
        ours, theirs = (sorted({run.variant for run in runs if run.variant.startswith(name + MARK)})
                        for name in ("taser", "gradient"))  # fmt: skip
        if not ours or len(ours) != len(theirs):  # more candidates would be an advantage
            continue
        picked: dict[tuple[str, str], list[float]] = {}
        for allowed in ALLOWED:
            pair = _chosen(ours, runs, allowed), _chosen(theirs, runs, allowed)
            if "off" not in pair:  # or one of them has no λ for this allowance
                picked.setdefault(pair, []).append(100 * allowed)
        for pair, levels in picked.items():
            both = [run for run in runs if run.variant in pair]
            found = {r.variant: r for r in rows(both, results.measures, baseline=pair[1])}
            yield method, levels, found[pair[0]], found[pair[1]]


def _comparable(runs: Sequence[RunResult], method: str) -> list[RunResult]:
    """A method's runs from scratch over λ, of the seeds that are finished for all of them."""
    over = [run for run in runs if run.method == method and not run.finetuned
            and (run.variant == "off" or MARK in run.variant)]  # fmt: skip
    seeds = [{r.seed for r in over if r.variant == v} for v in {"off", *(r.variant for r in over)}]
    shared = set.intersection(*seeds)
    return [run for run in over if run.seed in shared]


def _chosen(variants: Sequence[str], runs: Sequence[RunResult], allowed: float) -> str:
    """The variant that the validation split chooses of these and "off", by means over seeds.

    The highest robust accuracy among those that lose no more clean accuracy than is allowed.
    """
    found = []
    for variant in ("off", *variants):
        own = [run.record["result"] for run in runs if run.variant == variant]
        clean, robust = (fmean(result[name] for result in own) for name in ("clean", "robust"))
        found.append((robust, clean, variant))
    floor = found[0][1] - allowed - 1e-9
    return max((each for each in found if each[1] >= floor), key=lambda each: each[0])[2]


def table(found: Sequence[Pair]) -> str:
    """Both rows of each pair with their λ, and the differences with their intervals."""
    measure = found[0][2].headline
    seeds = any(ours.gain_retrained for _, _, ours, _ in found)
    headings = ["method", "clean loss allowed", "TASER: λ", "clean", measure, "isotropic: λ",
                "clean", measure, "Δ clean", f"Δ {measure}",
                *([f"{measure}, other seeds"] * seeds), "verdict"]  # fmt: skip
    cells = []
    for method, levels, ours, theirs in found:
        ends = sorted({levels[0], levels[-1]})
        line = [method, " to ".join(f"{end:g}" for end in ends)]
        for row in (ours, theirs):
            accuracies = [f"{100 * row.accuracy[m].value:.1f}" for m in ("clean", measure)]
            line += [row.variant.split(MARK)[1], *accuracies]
        gain, other = ours.gain or {}, ours.gain_retrained or {}
        line += [_gain(gain["clean"]), _gain(gain[measure])]
        line += [_gain(other[measure]) if other else ""] * seeds
        cells.append([*line, ours.verdict])
    return markdown(
        headings, cells,
        "Over all λ that were tried, equally many for both penalties. λ is chosen on the "
        "validation split: the highest robust accuracy among those that lose at most so many "
        "points of clean accuracy against the method alone. The figures are of the test examples. "
        "Δ: TASER minus the isotropic penalty in points with paired 95 % intervals over the "
        "examples, in bold where they exclude zero. Other seeds: the interval over examples and "
        "trainings.",
    )  # fmt: skip


def _gain(gain: Interval) -> str:
    text = f"{100 * gain.value:+.1f} [{100 * gain.low:.1f}, {100 * gain.high:.1f}]"
    return f"**{text}**" if gain.excludes_zero() else text


def draw(found: Sequence[Pair]) -> Figure:
    """TASER minus the isotropic penalty under attack, over the clean loss that is allowed."""
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    for method in dict.fromkeys(pair[0] for pair in found):
        points = [(level, ours.gain[ours.headline])
                  for name, levels, ours, _ in found if name == method and ours.gain
                  for level in levels]  # fmt: skip
        values = [100 * gain.value for _, gain in points]
        errors = [[100 * (gain.value - gain.low) for _, gain in points],
                  [100 * (gain.high - gain.value) for _, gain in points]]  # fmt: skip
        axes.errorbar([level for level, _ in points], values, yerr=errors, fmt="o-", label=method)
    axes.axhline(0, color="0.5", linestyle="--", linewidth=0.8)
    axes.set(xlabel="clean loss allowed, points", ylabel="TASER − isotropic, points")
    axes.legend(frameon=False)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of `taser compare`, or its records")
    parser.add_argument("--out", type=Path, help="by default FOLDER/equal-clean")
    given = parser.parse_args(arguments)
    found = list(pairs(read_results(given.folder)))
    if not found:
        raise SystemExit("no runs over equally many λ of both penalties have finished yet")
    figures = [
        {"method": method, "allowed": levels, "taser": asdict(ours), "isotropic": asdict(theirs)}
        for method, levels, ours, theirs in found
    ]
    write(
        given.out or given.folder / "equal-clean", [table(found)], figures, "gains.png", draw(found)
    )


if __name__ == "__main__":
    main()
