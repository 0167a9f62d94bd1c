"""The paper's tables with our figures."""

from collections.abc import Sequence

from taser.evaluation.statistics import Interval
from taser.studies.table_rows import Row

from .table import Table

NAMES = {
    "standard": "Standard", "pgd": "PGD", "trades": "TRADES", "mart": "MART",
    "trades-awp": "TRADES + AWP", "mart-awp": "MART + AWP",
}  # fmt: skip
VARIANTS = {"off": "—", "taser": "+ TASER", "gradient": "+ ‖∇m‖²", "smooth": "SiLU only"}
MEASURES = {
    "clean": "clean", "corrupted": "corrupted", "autoattack": "AA", "spsa": "SPSA",
    "worst": "worst case",
}  # fmt: skip

# Table 2 and the breakdown in the appendix: clean, AA, SPSA without TASER; the same with it.
PAPER = {
    "standard": ((77.88, 0.0, 6.0), (70.92, 10.6, 27.9), 2.45),
    "pgd": ((66.03, 17.8, 30.7), (65.64, 26.2, 40.5), 1.25),
    "trades": ((67.07, 18.9, 35.8), (65.61, 27.7, 40.2), 1.27),
    "mart": ((64.07, 18.4, 34.3), (63.31, 28.3, 41.7), 1.19),
    "trades-awp": ((67.90, 27.3, 40.8), (68.87, 29.9, 42.5), 1.21),
    "mart-awp": ((66.96, 25.7, 38.9), (66.14, 34.0, 44.5), 1.17),
}


WORDS = {
    "worst": "worst case: right under every attack tried on it",
    "autoattack": "AA: AutoAttack, four strong attacks one after another",
    "spsa": "SPSA: an attack that asks for no gradient",
}


def main_table(
    rows: Sequence[Row], *, finetuned: bool = False, against: str = "the method alone"
) -> Table:
    """Accuracy of each method and variant, and the gain over it, in per cent.

    A gain is in bold if its paired 95 % interval excludes zero. SPSA alone and times have a table
    of their own, :func:`detail_table`; so have corruptions.
    """
    chosen = [row for row in rows if row.finetuned == finetuned]
    found = list(chosen[0].accuracy) if chosen else []
    first = [m for m in found if m in ("clean", "worst", "autoattack")]
    first.sort(key=("clean", "worst", "autoattack").index)
    measures = [*first, *(m for m in found if m not in (*first, "spsa", "corrupted"))]
    headings = ["method", "variant"]
    for measure in measures:
        headings += [MEASURES.get(measure, measure), "Δ"]
    cells = []
    for row in chosen:
        line = [title_of(row.method), variant_of(row.variant)]
        for measure in measures:
            line += [percent(row.accuracy[measure].value), emphasised(row, measure)]
        cells.append(line)
    n = _sizes(chosen) if chosen else ""
    words = "; ".join(WORDS[measure] for measure in WORDS if measure in found)
    return Table(
        headings, cells,
        f"{'Fine-tuned' if finetuned else 'Trained from scratch'}: accuracy in per cent, {n}"
        f"{words and f' ({words})'}. Δ against {against} with its paired 95 % bootstrap interval "
        "over the examples, in bold where that excludes zero; where the answers to fewer "
        "than 20 examples differ, it is widened to the exact sign test's.",
    )  # fmt: skip


def detail_table(rows: Sequence[Row], *, finetuned: bool = False) -> Table:
    """SPSA, the paper's average, and what a run cost."""
    chosen = [row for row in rows if row.finetuned == finetuned]
    spsa = bool(chosen) and "spsa" in chosen[0].accuracy
    headings = ["method", "variant", *(["SPSA", "Δ", "AA/SPSA average"] if spsa else []),
                "ms/example", "overhead"]  # fmt: skip
    cells = []
    for row in chosen:
        line = [title_of(row.method), variant_of(row.variant)]
        if spsa:
            average = "" if row.average is None else percent(row.average)
            line += [percent(row.accuracy["spsa"].value), emphasised(row, "spsa"), average]
        overhead = "" if row.overhead is None else f"×{row.overhead:.2f}"
        cells.append([*line, f"{row.milliseconds:.2f}", overhead])
    return Table(
        headings, cells,
        "The average of AutoAttack and SPSA is the paper's headline. " * spsa
        + "Times were taken while runs shared the machine: rough.",
    )  # fmt: skip


def paper_table(rows: Sequence[Row]) -> Table:
    """The paper's own layout, its figures beside ours."""
    cells = []
    for method, (before, after, overhead) in PAPER.items():
        ours = {row.variant: row for row in rows if row.method == method and not row.finetuned}
        for name, figures, variant in (("off", before, "off"), ("+ TASER", after, "taser")):
            row = ours.get(variant)
            mine = [
                percent(row.accuracy[m].value) if row and m in row.accuracy else ""
                for m in ("clean", "autoattack", "spsa")
            ]
            average = "" if row is None or row.average is None else percent(row.average)
            cells.append([
                NAMES[method], name, *(f"{value:.1f}" for value in figures),
                f"{sum(figures[1:]) / 2:.1f}", *mine, average,
                f"×{overhead:.2f}" if name != "off" else "",
                f"×{row.overhead:.2f}" if row and row.overhead else "",
            ])  # fmt: skip
    headings = [
        "method", "", "clean (paper)", "AA (paper)", "SPSA (paper)", "average (paper)", "clean",
        "AA", "SPSA", "average", "overhead (paper)", "overhead",
    ]  # fmt: skip
    return Table(
        headings, cells,
        "The paper's CIFAR-10 figures (ResNet-18 at full width, 200 epochs, one GPU) beside ours; "
        "the settings differ, so compare the differences, not the levels.",
    )  # fmt: skip


def _sizes(rows: Sequence[Row]) -> str:
    """n = 500 (SPSA 100) and 1 seed, or 2 to 3 seeds while some runs are not finished."""
    sizes = rows[0].n
    n = sizes["clean"]
    fewer = [f"{MEASURES.get(m, m)} {size}" for m, size in sizes.items() if size != n]
    least, most = (limit(row.seeds for row in rows) for limit in (min, max))
    seeds = f"{least} to {most} seeds" if least < most else f"{most} seed{'s' * (most > 1)}"
    return f"n = {n} {'(' + ', '.join(fewer) + ') ' if fewer else ''}and {seeds}"


def emphasised(row: Row, measure: str) -> str:
    """The gain with its interval, in bold where that excludes zero."""
    if row.gain is None:
        return ""
    return bold_if_sure(interval(row.gain[measure]), row.gain[measure])


def bold_if_sure(text: str, found: Interval) -> str:
    """The text, in bold where the interval excludes zero."""
    return f"**{text}**" if found.excludes_zero() else text


def interval(value: Interval) -> str:
    """+3.2 [1.0, 5.4], in per cent points."""
    return f"{100 * value.value:+.1f} {bounds(value)}"


def bounds(value: Interval) -> str:
    """[1.0, 5.4], in per cent points."""
    return f"[{100 * value.low:.1f}, {100 * value.high:.1f}]"


def percent(share: float) -> str:
    """A share as per cent with one decimal, without the sign."""
    return f"{100 * share:.1f}"


def title_of(method: str, finetuned: bool = False) -> str:
    """A method's name in tables and above figures."""
    return NAMES.get(method, method) + (" (fine-tuned)" if finetuned else "")


def variant_of(variant: str) -> str:
    """A variant's name in tables."""
    return VARIANTS.get(variant, variant)
