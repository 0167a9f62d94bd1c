"""Tables of a comparison: accuracies and gains, seeds, costs, searches, penalties, diagnostics."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from taser.attacks import Threat
from taser.compare import Results, Row, RunResult, rows
from taser.compare._comparison_config import best
from taser.compare._run_results import headline, in_order, verdict
from taser.evaluation import Interval

from ._page import Table

METHODS = {
    "standard": "Standard", "pgd": "PGD", "trades": "TRADES", "mart": "MART",
    "trades-awp": "TRADES + AWP", "mart-awp": "MART + AWP",
}  # fmt: skip
VARIANTS = {"off": "—", "taser": "+ TASER", "gradient": "+ ‖∇m‖²", "smooth": "SiLU only"}
MEASURES = {"autoattack": "AA", "spsa": "SPSA", "worst": "worst case"}
EXPLAINED = {
    "worst": "worst case: correct under every attack that was tried on the example",
    "autoattack": "AA: AutoAttack, four strong attacks one after another",
}
MARK = " λ="
"""Variants called "taser λ=0.1", "taser λ=0.3", … are points of one curve, "taser"."""
OTHER_SEEDS = " Other seeds: the interval over examples and trainings."


def title_of(method: str, finetuned: bool = False) -> str:
    """A method's name in tables and above figures."""
    return METHODS.get(method, method) + (" (fine-tuned)" if finetuned else "")


def variant_of(variant: str) -> str:
    """A variant's name in tables."""
    return VARIANTS.get(variant, variant)


def label_of(measure: str) -> str:
    """A measure's name in headings."""
    return MEASURES.get(measure, measure)


def names_of(row: Row | RunResult) -> list[str]:
    """The first two cells of a line."""
    return [title_of(row.method, row.finetuned), variant_of(row.variant)]


def percent(share: float) -> str:
    """A share in per cent with one decimal, without the sign."""
    return f"{100 * share:.1f}"


def gain(row: Row | None, measure: str) -> str:
    """+3.2 [1.0, 5.4] in points, in bold where the interval excludes zero; "" for the baseline."""
    if row is None or row.gain is None:
        return ""
    found = row.gain[measure]
    return _bold(f"{100 * found.value:+.1f} {_bounds(found)}", found)


def retrained(row: Row, measure: str) -> str:
    """The bounds of the gain over examples and trainings; "" for one seed."""
    if row.gain_retrained is None:
        return ""
    return _bold(_bounds(row.gain_retrained[measure]), row.gain_retrained[measure])


def _bounds(interval: Interval) -> str:
    return f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _bold(text: str, interval: Interval) -> str:
    return f"**{text}**" if interval.excludes_zero() else text


def main_table(
    found: Sequence[Row], *, finetuned: bool = False, against: str = "the method alone"
) -> Table:
    """Accuracy of each method and variant in per cent, its gain, and a verdict on the headline.

    SPSA and times are in :func:`cost_table`, corruptions in :func:`corrupted_table`.
    """
    chosen = [row for row in found if row.finetuned == finetuned]
    measures = [m for m in chosen[0].accuracy if m not in ("spsa", "corrupted")] if chosen else []
    measures.sort(key=lambda m: {"clean": 0, "worst": 1, "autoattack": 2}.get(m, 3))
    headings = ["method", "variant", *(cell for m in measures for cell in (label_of(m), "Δ"))]
    cells = [
        [title_of(row.method), variant_of(row.variant),
         *(cell for m in measures for cell in (percent(row.accuracy[m].value), gain(row, m))),
         row.verdict]
        for row in chosen
    ]  # fmt: skip
    explained = "; ".join(EXPLAINED[m] for m in EXPLAINED if m in measures)
    counted = f" The verdict is on {label_of(chosen[0].headline)}." if chosen else ""
    return Table(
        [*headings, "verdict"], cells,
        f"{'Fine-tuned' if finetuned else 'Trained from scratch'}: accuracy in per cent, "
        f"{_sizes(chosen) if chosen else ''}{explained and f' ({explained})'}. Δ against {against} "
        "with its paired 95 % bootstrap interval over the examples, in bold where that excludes "
        "zero; where the answers to fewer than 20 examples differ, it is widened to the exact sign "
        f"test's.{counted}",
    )  # fmt: skip


def _sizes(found: Sequence[Row]) -> str:
    """n = 500 (SPSA 100) and 1 seed, or 2 to 3 seeds while some runs are not finished."""
    sizes = found[0].n
    fewer = [f"{label_of(m)} {size}" for m, size in sizes.items() if size != sizes["clean"]]
    counts = sorted({row.seeds for row in found})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    n = f"n = {sizes['clean']} {'(' + ', '.join(fewer) + ') ' if fewer else ''}"
    return f"{n}and {seeds} seed{'s' * (counts[-1] > 1)}"


def seed_table(found: Sequence[Row], *, finetuned: bool = False) -> Table | None:
    """The gains of single seeds, and intervals over trainings; None where all rows have one."""
    chosen = [row for row in found if row.finetuned == finetuned and row.gain_retrained]
    if not chosen:
        return None
    measures = ["clean", chosen[0].headline]
    headings = ["method", "variant", "seeds"]
    for m in measures:
        headings += [f"Δ {label_of(m)} by seed", "with other seeds"]
    cells = []
    for row in chosen:
        assert row.gain_range is not None
        assert row.gain_retrained is not None
        line = [title_of(row.method), variant_of(row.variant), str(row.seeds)]
        for m in measures:
            low, high = row.gain_range[m]
            line += [f"{100 * low:+.1f} … {100 * high:+.1f}", retrained(row, m)]
        cells.append([*line, verdict(row.gain_retrained[row.headline])])
    return Table(
        [*headings, "verdict with other seeds"], cells,
        "Gains by seed: the lowest and the highest. With other seeds: the 95 % interval over "
        "examples and trainings (Student's t), in bold where it excludes zero; all other intervals "
        "are over the examples alone, for the networks as they are.",
    )  # fmt: skip


def cost_table(found: Sequence[Row], *, finetuned: bool = False) -> Table:
    """SPSA, and the time of training."""
    chosen = [row for row in found if row.finetuned == finetuned]
    spsa = bool(chosen) and "spsa" in chosen[0].accuracy
    cells = [
        [title_of(row.method), variant_of(row.variant),
         *([percent(row.accuracy["spsa"].value), gain(row, "spsa")] if spsa else []),
         f"{row.milliseconds:.2f}", f"×{row.overhead:.2f}" if row.overhead else ""]
        for row in chosen
    ]  # fmt: skip
    headings = ["method", "variant", *(["SPSA", "Δ"] if spsa else []), "ms/example", "overhead"]
    spsa_words = "SPSA is an attack without gradients. " * spsa
    return Table(
        headings, cells, f"{spsa_words}Times are rough where runs shared the machine."
    )  # fmt: skip


def search_table(results: Results) -> Table | None:
    """Every run of the search, finished or not; None without a search."""
    tried = [record for record in results.records if "candidate" in record["job"]]
    if not tried:
        return None
    taken = {(run.method, run.variant): run.chosen for run in results.runs}
    cells = []
    for record in tried:
        job, found = record["job"], record.get("result", {})
        chosen = taken.get((job["method"], job["variant"]), [])  # after the findings of "off"
        own = bool(job["candidate"]) and chosen[-len(job["candidate"]) :] == job["candidate"]
        cells.append([
            title_of(job["method"]), variant_of(job["variant"]), ", ".join(job["candidate"]),
            *(percent(found[m]) if found else "" for m in ("clean", "robust")),
            "chosen" if own else "",
        ])  # fmt: skip
    alike = " ".join(o for o in tried[0]["job"]["overrides"] if not o.startswith("regulariser."))
    return Table(
        ["method", "variant", "tried", "clean", "robust (short PGD)", ""], cells,
        "Runs of the search, evaluated on the validation split, in per cent: the highest robust "
        "accuracy (for standard training alone the highest clean accuracy) was chosen, among those "
        f"that lose no more clean accuracy than the search allows. All had {alike}.",
    )  # fmt: skip


def unseen_tables(results: Results) -> list[Table]:
    """One for each threat that training did not use."""
    return [_unseen(threat, runs) for threat, runs in results.unseen.items()]


def _unseen(threat: Threat, runs: Sequence[RunResult]) -> Table:
    measure = headline(runs[0].attacks)
    found = rows(runs, ["clean", measure])
    against = {(row.method, row.finetuned): row
               for row in rows(runs, ["clean", measure], baseline="gradient")
               if row.variant == "taser" and row.gain}  # fmt: skip
    seeds = any(row.gain_retrained for row in found)
    cells = []
    for row in found:
        other = against.get((row.method, row.finetuned)) if row.variant == "taser" else None
        cells.append([
            *names_of(row), percent(row.accuracy[measure].value), gain(row, measure), row.verdict,
            *([retrained(row, measure)] * seeds), *([gain(other, measure)] * bool(against)),
        ])  # fmt: skip
    headings = ["method", "variant", label_of(measure), "Δ", "verdict",
                *(["with other seeds"] * seeds), *(["against ‖∇m‖²"] * bool(against))]  # fmt: skip
    return Table(
        headings, cells,
        f"The same networks under {threat}, which training did not use: accuracy in per cent, "
        f"n = {found[0].n[measure]}. Δ against the method alone, and against the isotropic penalty "
        "where there is one, with paired 95 % intervals over the examples, in bold where they "
        f"exclude zero.{OTHER_SEEDS * seeds}",
    )  # fmt: skip


def penalty_table(results: Results) -> Table | None:
    """TASER minus every other penalty, at the settings of the table."""
    variants = dict.fromkeys(run.variant for run in results.runs)
    others = [v for v in variants if v not in ("off", "taser") and MARK not in v]
    pairs = [(other, row) for other in others for row in results.rows(baseline=other)
             if row.variant == "taser" and row.gain is not None]  # fmt: skip
    if not pairs:
        return None
    first = pairs[0][1]
    measures = [m for m in first.accuracy if m != "worst" or m == first.headline]
    seeds = any(row.gain_retrained for _, row in pairs)
    cells = [
        [title_of(row.method, row.finetuned), variant_of(other), *(gain(row, m) for m in measures),
         *([retrained(row, row.headline)] * seeds), row.verdict]
        for other, row in pairs
    ]  # fmt: skip
    return Table(
        ["method", "against", *(f"Δ {label_of(m)}" for m in measures),
         *([f"{label_of(first.headline)}, other seeds"] * seeds), "verdict"], cells,
        "TASER minus another penalty in points, at the settings of the table: paired 95 % "
        f"intervals over the examples, in bold where they exclude zero.{OTHER_SEEDS * seeds}",
    )  # fmt: skip


ALLOWED = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)  # of clean accuracy


def equal_clean_table(results: Results) -> Table | None:
    """TASER and the isotropic penalty, each at the λ that the same clean loss allows.

    A line for each pair of λ that some allowances choose; None without curves of both.
    """
    found = list(_pairs(results))
    if not found:
        return None
    shown = ["clean", *compared_by(results.measures)]
    attack = label_of(shown[1])
    seeds = any(ours.gain_retrained for _, ours, _ in found)
    headings = ["method", "clean loss allowed", "TASER: λ", "clean", attack, "isotropic: λ",
                "clean", attack, *(f"Δ {label_of(m)}" for m in shown),
                *([f"{attack}, other seeds"] * seeds), "verdict"]  # fmt: skip
    cells = [
        [title_of(ours.method), levels,
         *(cell for row in (ours, theirs)
           for cell in (weight_of(row), *(percent(row.accuracy[m].value) for m in shown[:2]))),
         *(gain(ours, m) for m in shown), *([retrained(ours, shown[1])] * seeds), ours.verdict]
        for levels, ours, theirs in found
    ]  # fmt: skip
    return Table(
        headings, cells,
        "Over all λ that were tried, equally many for both penalties. λ is chosen on the "
        "validation split: the highest robust accuracy among those that lose at most so many "
        "points of clean accuracy against the method alone. The figures are of the test examples. "
        "Δ: TASER minus the isotropic penalty in points with paired 95 % intervals over the "
        f"examples, in bold where they exclude zero.{OTHER_SEEDS * seeds}",
    )  # fmt: skip


def compared_by(measures: Sequence[str]) -> list[str]:
    """The measures that penalties are compared by: the headline, and corruptions if there."""
    return [headline(measures), *(["corrupted"] if "corrupted" in measures else [])]


def weight_of(row: Row) -> str:
    """The λ in a variant's name."""
    return row.variant.split(MARK)[1]


def _pairs(results: Results) -> Iterator[tuple[str, Row, Row]]:
    """The allowances in points, TASER's row with its gain over the isotropic one's, and that."""
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
            ends = sorted({levels[0], levels[-1]})
            yield " to ".join(f"{end:g}" for end in ends), found[pair[0]], found[pair[1]]


def _chosen(variants: Sequence[str], runs: Sequence[RunResult], allowed: float) -> str:
    """The variant that the validation split chooses of these and "off", by means over seeds."""
    found: list[dict[str, Any]] = []
    for variant in ("off", *variants):
        own = [run.validation for run in runs if run.variant == variant]
        means = {name: fmean(figures[name] for figures in own) for name in ("clean", "robust")}
        found.append({"variant": variant, **means})
    return best(found, floor=found[0]["clean"] - allowed - 1e-9)["variant"]


def _comparable(runs: Sequence[RunResult], method: str) -> list[RunResult]:
    """A method's runs from scratch over λ, of the seeds that are finished for all of them."""
    over = [run for run in runs if run.method == method and not run.finetuned
            and (run.variant == "off" or MARK in run.variant)]  # fmt: skip
    seeds = [{r.seed for r in over if r.variant == v} for v in {"off", *(r.variant for r in over)}]
    shared = set.intersection(*seeds)
    return [run for run in over if run.seed in shared]


def corrupted_table(results: Results) -> Table | None:
    """Accuracy under corruptions and by kind, as means over seeds."""
    runs = [run for run in results.runs if "corrupted" in run.diagnostics]
    if not runs:
        return None
    kinds = list(runs[0].diagnostics["corrupted"]["kinds"])
    found = {tuple(names_of(row)): row for row in results.rows() if "corrupted" in row.accuracy}
    cells = []
    for names, same in _by_row(runs).items():
        row = found.get(names)
        mean = percent(row.accuracy["corrupted"].value) if row else ""
        shares = [fmean(run.diagnostics["corrupted"]["kinds"][kind] for run in same)
                  for kind in kinds]  # fmt: skip
        cells.append([" ".join(names), mean, gain(row, "corrupted") if row else "",
                      *map(percent, shares), str(len(same))])  # fmt: skip
    return Table(
        ["run", "mean", "Δ", *kinds, "seeds"], cells,
        "Accuracy under corruptions in per cent: the mean of all with its change against the "
        "method alone and a paired 95 % interval, and each kind over its five severities: noise "
        "(Gaussian, shot, impulse, speckle), blur (Gaussian, defocus, motion), light (fog, "
        "brightness, contrast, saturation where there is colour), digital (elastic, pixelate, "
        f"JPEG). n = {len(runs[0].diagnostics['corrupted']['right'])}; means over seeds.",
    )  # fmt: skip


def sensitivity_table(results: Results) -> Table | None:
    """Size and direction of the margin's gradient, and a linear network's accuracy."""
    runs = [run for run in results.runs if "sensitivity" in run.diagnostics]
    if not runs:
        return None
    cells = []
    for names, same in _by_row(runs).items():
        seen = [run.diagnostics["sensitivity"] for run in same]
        shares = [each["off_data"] for each in seen if each["off_data"] is not None]
        cells.append([
            " ".join(names), f"{fmean(each['gradient'] for each in seen):.3g}",
            f"{100 * fmean(shares):.0f} %" if shares else "–",
            f"{100 * fmean(each['linear'] for each in seen):.1f} %",
            f"{100 * fmean(_under_pgd(run) for run in same):.1f} %", str(len(seen)),
        ])  # fmt: skip
    return Table(
        ["run", "‖∇m‖", "off the data", "correct if linear", "correct under PGD", "seeds"], cells,
        f"Sensitivity of the margin m on {runs[0].diagnostics['curve']['n']} test examples: its "
        "size; the share in directions that the shipped denoiser takes for noise, as a mean over "
        f"examples; accuracy at ε = {runs[0].threat.epsilon:.3g} if every logit was linear around "
        "each example, and under PGD. The difference of the last two is due to curvature inside "
        "the ball.",
    )  # fmt: skip


def _under_pgd(run: RunResult) -> float:
    """The curve's accuracy at the ε of the table."""
    curve = run.diagnostics["curve"]
    points = zip(curve["epsilons"], curve["accuracies"], strict=True)
    return float(min(points, key=lambda point: abs(point[0] - run.threat.epsilon))[1])


def audit_table(results: Results) -> Table | None:
    """The verdict on every run that was audited."""
    cells = []
    for run in results.runs:
        if audit := run.diagnostics.get("audit"):
            failed = [check["name"] for check in audit["checks"] if check["status"] == "failed"]
            cells.append([" ".join(names_of(run)), str(run.seed), audit["verdict"],
                          ", ".join(failed) or "none", str(audit["n"])])  # fmt: skip
    caption = "Audits of the runs with TASER: the verdict, and which of fourteen checks failed."
    return (
        Table(["run", "seed", "verdict", "checks failed", "n"], cells, caption) if cells else None
    )


LAST = 0.1  # of training: the part whose batches are counted


def generalisation_table(results: Results) -> Table | None:
    """Attacked training examples against validation examples, where training attacks."""
    cells = []
    for names, runs in _by_row(results.runs).items():
        found = [each for each in map(_at_the_end, runs) if each]
        if found:
            train, held_out = (100 * fmean(side) for side in zip(*found, strict=True))
            gap = f"{train - held_out:+.1f}"
            cells.append([" ".join(names), f"{train:.1f}", f"{held_out:.1f}", gap, str(len(found))])
    if not cells:
        return None
    return Table(
        ["run", "attacked training examples", "validation examples", "gap", "seeds"], cells,
        "Accuracy at the end of training in per cent: training examples under the method's own "
        "attack in the last tenth of the steps (TRADES's is weaker than PGD, so that its gap looks "
        "larger), and validation examples under a short PGD. Means over seeds.",
    )  # fmt: skip


def _at_the_end(run: RunResult) -> tuple[float, float] | None:
    """The accuracies on attacked training examples and on validation examples."""
    training, validation = run.record.get("training", {}), run.record.get("validation", [])
    steps, shares = training.get("step", []), training.get("attacked", [])
    start = (1 - LAST) * max([*steps, *(line["step"] for line in validation)], default=0)
    late = [share for step, share in zip(steps, shares, strict=False)
            if step > start and share is not None]  # fmt: skip
    return (fmean(late), validation[-1]["robust"]) if late and validation else None


def _by_row(runs: Sequence[RunResult]) -> dict[tuple[str, ...], list[RunResult]]:
    """The seeds of each method and variant together."""
    groups: dict[tuple[str, ...], list[RunResult]] = {}
    for run in in_order(runs):
        groups.setdefault(tuple(names_of(run)), []).append(run)
    return groups
