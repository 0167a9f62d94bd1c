"""Tables of a comparison: accuracies and gains, seeds, costs, searches, penalties, audits."""

from collections.abc import Sequence

from taser.compare import Results, Row
from taser.compare._comparison_config import method_title, variant_label
from taser.compare._run_results import verdict

from ._page import Table, with_bounds

MEASURES = {"autoattack": "AA", "spsa": "SPSA", "worst": "worst case"}
EXPLAINED = {
    "worst": "worst case: correct under every attack that was tried on the example",
    "autoattack": "AA: AutoAttack, four strong attacks one after another",
}
MARK = " λ="
"""Variants called "taser λ=0.1", "taser λ=0.3", … are points of one curve, "taser"."""
OTHER_SEEDS = " Other seeds: the interval over examples and trainings."


def label_of(measure: str) -> str:
    """A measure's name in headings."""
    return MEASURES.get(measure, measure)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _gain(row: Row | None, measure: str) -> str:
    """+3.2 [1.0, 5.4] in points, in bold where the interval excludes zero; "" for the baseline."""
    if row is None or row.gain is None:
        return ""
    text = with_bounds(row.gain[measure], form="+.1f")
    return f"**{text}**" if row.gain[measure].excludes_zero() else text


def _retrained(row: Row, measure: str) -> str:
    """The bounds of the gain over examples and trainings; "" for one seed."""
    if row.gain_retrained is None:
        return ""
    found = row.gain_retrained[measure]
    text = f"[{100 * found.low:.1f}, {100 * found.high:.1f}]"
    return f"**{text}**" if found.excludes_zero() else text


def main_table(found: Sequence[Row]) -> Table:
    """Accuracy of each row in per cent, its gain, and a verdict on the headline."""
    measures = [m for m in found[0].accuracy if m != "spsa"]  # which is in the table of costs
    if all(row.accuracy.get("worst") == row.accuracy[row.headline] for row in found):
        measures = [m for m in measures if m != "worst" or m == found[0].headline]
    measures.sort(key=lambda m: {"clean": 0, "worst": 1, "autoattack": 2}.get(m, 3))
    headings = ["method", "variant", *(cell for m in measures for cell in (label_of(m), "Δ"))]
    cells = [
        [method_title(row.method), variant_label(row.variant),
         *(cell for m in measures for cell in (_percent(row.accuracy[m].value), _gain(row, m))),
         row.verdict]
        for row in found
    ]  # fmt: skip
    explained = "; ".join(EXPLAINED[m] for m in EXPLAINED if m in measures)
    sizes = found[0].n
    fewer = ", ".join(f"{label_of(m)} {n}" for m, n in sizes.items() if n != sizes["clean"])
    counts = sorted({row.seeds for row in found})  # several while some runs are not finished
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    return Table(
        [*headings, "verdict"], cells,
        f"{'Fine-tuned' if found[0].finetuned else 'Trained from scratch'}: accuracy in per cent, "
        f"n = {sizes['clean']} {fewer and f'({fewer}) '}and {seeds} seed{'s' * (counts[-1] > 1)}"
        f"{explained and f' ({explained})'}. Δ against the method alone "
        "with its paired 95 % interval over the examples (Newcombe), in bold where that excludes "
        f"zero. The verdict is on {label_of(found[0].headline)}.",
    )  # fmt: skip


def seed_table(found: Sequence[Row]) -> Table | None:
    """The gains of single seeds, and intervals over trainings; None where all rows have one."""
    headings, cells = ["method", "variant", "seeds"], []
    for m in (measures := ["clean", found[0].headline]):
        headings += [f"Δ {label_of(m)} by seed", "with other seeds"]
    for row in found:
        if row.gain_range and row.gain_retrained:
            line = [method_title(row.method), variant_label(row.variant), str(row.seeds)]
            for m in measures:
                low, high = row.gain_range[m]
                line += [f"{100 * low:+.1f} … {100 * high:+.1f}", _retrained(row, m)]
            cells.append([*line, verdict(row.gain_retrained[row.headline])])
    caption = (
        "Gains by seed: the lowest and the highest. With other seeds: the 95 % interval over "
        "examples and trainings (Student's t), in bold where it excludes zero; all other intervals "
        "are over the examples alone, for the networks as they are."
    )
    return Table([*headings, "verdict with other seeds"], cells, caption) if cells else None


def cost_table(found: Sequence[Row]) -> Table:
    """SPSA, and the time of training."""
    spsa = "spsa" in found[0].accuracy
    cells = [
        [method_title(row.method), variant_label(row.variant),
         *([_percent(row.accuracy["spsa"].value), _gain(row, "spsa")] if spsa else []),
         f"{row.milliseconds:.2g}", f"×{row.overhead:.1f}" if row.overhead else ""]
        for row in found
    ]  # fmt: skip
    headings = ["method", "variant", *(["SPSA", "Δ"] if spsa else []), "ms/example", "overhead"]
    words = "SPSA is an attack without gradients. " * spsa
    return Table(headings, cells, f"{words}Times are rough where runs shared the machine.")


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
            method_title(job["method"]), variant_label(job["variant"]), ", ".join(job["candidate"]),
            *(_percent(found[m]) if found else "" for m in ("clean", "robust")),
            "chosen" if own else "",
        ])  # fmt: skip
    alike = " ".join(o for o in tried[0]["job"]["overrides"] if not o.startswith("regulariser."))
    return Table(
        ["method", "variant", "tried", "clean", "robust (short PGD)", ""], cells,
        "Runs of the search, evaluated on the validation split, in per cent: the highest robust "
        "accuracy (for standard training alone the highest clean accuracy) was chosen, among those "
        f"that lose no more clean accuracy than the search allows. All had {alike}.",
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
        [method_title(row.method, row.finetuned), variant_label(other),
         *(_gain(row, m) for m in measures), *([_retrained(row, row.headline)] * seeds),
         row.verdict]
        for other, row in pairs
    ]  # fmt: skip
    return Table(
        ["method", "against", *(f"Δ {label_of(m)}" for m in measures),
         *([f"{label_of(first.headline)}, other seeds"] * seeds), "verdict"], cells,
        "TASER minus another penalty in points, at the settings of the table: paired 95 % "
        f"intervals over the examples, in bold where they exclude zero.{OTHER_SEEDS * seeds}",
    )  # fmt: skip


def audit_table(results: Results) -> Table | None:
    """The verdict on every run that was audited."""
    cells = []
    for run in results.runs:
        if audit := run.diagnostics.get("audit"):
            failed = [check["name"] for check in audit["checks"] if check["status"] == "failed"]
            name = f"{method_title(run.method, run.finetuned)} {variant_label(run.variant)}"
            cells.append([name, str(run.seed), audit["verdict"], ", ".join(failed) or "none",
                          str(audit["n"])])  # fmt: skip
    headings = ["run", "seed", "verdict", "checks failed", "n"]
    caption = "Audits of the runs with TASER: the verdict, and which checks failed."
    return Table(headings, cells, caption) if cells else None
