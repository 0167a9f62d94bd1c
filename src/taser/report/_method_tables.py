"""TASER against other penalties as set, and the isotropic one over λ for the same loss."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taser.attacks import Threat
from taser.compare._comparison_config import best
from taser.compare._jobs import Queue
from taser.compare._run_results import Row, RunResult, headline, results, rows, unseen
from taser.evaluation._statistics import Interval

from ._page import Block, Table


@dataclass(frozen=True)
class Finished:
    """queue: with the runs that are not finished, too; runs: those that are, not of a search."""

    queue: Queue
    runs: list[RunResult]

    @classmethod
    def of(cls, queue: Queue) -> "Finished":
        """All of a queue; an error if there are none."""
        runs = results(queue)
        if not runs:
            raise ValueError(f"no run in {queue.folder} is finished yet")
        return cls(queue, runs)

    @property
    def measures(self) -> list[str]:
        """What all runs were judged by; corruptions are not in older records."""
        attacks = self.runs[0].attacks
        asked = {run.closer.get("corrupted", {}).get("of") for run in self.runs}
        corrupted = ["corrupted"] if len(asked) == 1 and None not in asked else []
        return ["clean", *corrupted, *attacks, *(["worst"] if len(attacks) > 1 else [])]

    @cached_property
    def unseen(self) -> dict[Threat, list[RunResult]]:
        """The runs as judged under each threat that training did not know."""
        return unseen(self.queue)

    def rows(self, *, baseline: str = "off") -> list[Row]:
        """Of the tables; gains are over the variant `baseline`."""
        return rows(self.runs, self.measures, baseline=baseline)


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


COLOURS = {"off": "#6b7280", "taser": "#2563eb", "gradient": "#d97706"}
KINDS = {"off": "method alone", "taser": "TASER", "gradient": "‖∇m‖²", "other": "others"}
MOST_NAMED = 6
"""A legend of more names than this would hide what it explains."""


def kind(variant: str) -> str:
    """What a variant is one of: "taser λ=0.1" and "TASER as it is" are both "taser"."""
    first = variant.split()[0].lower()
    return first if first in COLOURS else "other"


def label(variant: str) -> str:
    """A variant's name in a legend."""
    return "method alone" if variant == "off" else variant_of(variant)


def colour(variant: str) -> str:
    """That of its kind."""
    return COLOURS.get(kind(variant), "#059669")


def looks(variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Matplotlib's keywords for the line of each variant; of many only the kinds are named.

    >>> looks(["off", "taser"])["taser"]
    {'color': '#2563eb', 'label': '+ TASER'}
    """
    if len(variants) <= MOST_NAMED:
        return {name: {"color": colour(name), "label": label(name)} for name in variants}
    found: dict[str, dict[str, Any]] = {}
    named: set[str] = set()
    for name in variants:
        own = kind(name)
        thin = {"lw": 0.8, "alpha": 0.5, "zorder": 1} if own == "other" else {}
        found[name] = {
            "color": colour(name), "label": "_" if own in named else KINDS[own], **thin
        }  # fmt: skip
        named.add(own)
    return found


MARK = " λ="
"""Variants called "taser λ=0.1", "taser λ=0.3", … are points of one curve, "taser"."""


def families(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The curves among the rows of one method, each in the order of λ."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if MARK in row.variant:
            found.setdefault(row.variant.split(MARK)[0], []).append(row)
    for curve in found.values():
        curve.sort(key=lambda row: float(row.variant.split(MARK)[1]))
    return found


def draw_frontier(rows: Sequence[Row]) -> Figure | None:
    """A line of panels for each method, one for each measure; a curve for each penalty, with 95 %
    intervals. None without λ.
    """
    rows = [row for row in rows if not row.finetuned]
    methods = list(dict.fromkeys(row.method for row in rows if MARK in row.variant))
    if not methods:
        return None
    measures = judged(list(rows[0].accuracy))
    panels = [(method, measure) for method in methods for measure in measures]
    size = (4.6 * len(measures), 3.6 * len(methods))
    figure = Figure(figsize=size, layout="constrained")
    places = figure.subplots(len(methods), len(measures), squeeze=False).flat
    for axes, (method, measure) in zip(places, panels, strict=True):
        own = [row for row in rows if row.method == method]
        for name, curve in families(own).items():
            _plot(axes, curve, measure, name, "o-")
        _plot(axes, [row for row in own if row.variant == "off"], measure, "off", "*")
        axes.set(
            title=title_of(method), xlabel="clean accuracy, %",
            ylabel=f"accuracy {under(measure)}, %",
        )  # fmt: skip
    named = figure.axes[0].get_legend_handles_labels()  # above all: inside it would hide points
    figure.legend(*named, loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    return figure


def judged(measures: Sequence[str]) -> list[str]:
    """What penalties are compared by: the attack that counts, and corruptions if asked for."""
    return [headline(measures), *(["corrupted"] if "corrupted" in measures else [])]


def under(measure: str) -> str:
    """After the word "accuracy"."""
    name = MEASURES.get(measure, measure)
    return "under corruptions" if measure == "corrupted" else f"under {name}"


def _plot(axes: Axes, curve: Sequence[Row], measure: str, name: str, style: str) -> None:
    clean, robust = ([row.accuracy[m] for row in curve] for m in ("clean", measure))
    errors = [
        [[100 * (i.value - i.low) for i in side], [100 * (i.high - i.value) for i in side]]
        for side in (clean, robust)
    ]
    axes.errorbar(
        [100 * i.value for i in clean], [100 * i.value for i in robust], xerr=errors[0],
        yerr=errors[1], fmt=style, label=label(name), color=colour(name),
        ecolor=f"{colour(name)}66", elinewidth=0.8, markersize=5,
    )  # fmt: skip
    for row, x, y in zip(curve, clean, robust, strict=True):
        if MARK in row.variant:
            axes.annotate(
                row.variant.split(MARK)[1], (100 * x.value, 100 * y.value), fontsize=7,
                xytext=(4, 3), textcoords="offset points",
            )  # fmt: skip


CAPTION = (
    "Gains by seed: the lowest and the highest. With other seeds: the 95 % interval had the "
    "networks been trained once more and other examples drawn (Student's t over seeds and "
    "examples), in bold where it excludes zero; all other intervals take the networks as they are."
)
OTHER_SEEDS = " Other seeds: the interval had the networks been trained once more as well."


def seed_table(rows: Sequence[Row], *, finetuned: bool = False) -> Table | None:
    """Of the gains in clean and in robust accuracy; None where every row has one seed."""
    chosen = [row for row in rows if row.finetuned == finetuned and row.gain_retrained]
    if not chosen:
        return None
    measures = ["clean", chosen[0].headline]
    headings = ["method", "variant", "seeds"]
    for measure in measures:
        headings += [f"Δ {MEASURES.get(measure, measure)} by seed", "with other seeds"]
    cells = []
    for row in chosen:
        line = [title_of(row.method), variant_of(row.variant), str(row.seeds)]
        for measure in measures:
            line += [_by_seed(row, measure), retrained(row, measure)]
        cells.append(line)
    return Table(headings, cells, CAPTION)


def _by_seed(row: Row, measure: str) -> str:
    assert row.gain_range is not None
    low, high = row.gain_range[measure]
    return f"{100 * low:+.1f} … {100 * high:+.1f}"


def retrained(row: Row, measure: str) -> str:
    """The bounds of the gain with other seeds, in bold where they exclude zero; "" for one seed."""
    if row.gain_retrained is None:
        return ""
    found = row.gain_retrained[measure]
    return bold_if_sure(bounds(found), found)


def summary(rows: Sequence[Row]) -> list[str]:
    """One sentence for each method, and one that counts them."""
    lines, helped, lasting, total = [], 0, 0, 0
    for row in rows:
        if row.variant != "taser" or row.gain is None:
            continue
        total += 1
        measure = row.headline
        helped += row.supported(measure)
        lasting += row.lasting(measure)
        lines.append(_sentence(row, _control(rows, row), measure))
    if not total:
        others = any(row.gain is not None for row in rows)
        return [] if others else ["No run with TASER is finished yet."]
    attack = MEASURES.get(rows[0].headline, rows[0].headline)
    first = (
        f"Under attack ({attack}) TASER's gain is supported (paired 95 % interval above zero) for "
        f"{helped} of {total} comparisons"
    )
    if any(row.gain_retrained for row in rows):
        first += f", and for {lasting} of these by the interval that holds other seeds as well"
    return [f"{first}.", *lines]


def verdict(gain: Interval) -> str:
    """What a paired interval says: raised, lowered, or left."""
    return "raised" if gain.low > 0 else "lowered" if gain.high < 0 else "left"


def _sentence(row: Row, control: Row | None, measure: str) -> str:
    assert row.gain is not None
    gain, clean = row.gain[measure], row.gain["clean"]
    change = verdict(gain)
    where = "" if change != "left" else " without a supported change"
    text = (
        f"{title_of(row.method, row.finetuned)}: TASER {change} robust accuracy{where}, "
        f"{interval(gain)} points{_retrained(row, measure)}, with clean accuracy {interval(clean)}"
    )
    if control is not None and control.gain is not None:
        text += (
            f"; the isotropic penalty {interval(control.gain[measure])}, clean "
            f"{interval(control.gain['clean'])}"
        )
    return text + "."


def _retrained(row: Row, measure: str) -> str:
    found = row.gain_retrained
    return f" ({bounds(found[measure])} with other seeds)" if found else ""


def _control(rows: Sequence[Row], row: Row) -> Row | None:
    same = (r for r in rows if (r.method, r.finetuned) == (row.method, row.finetuned))
    return next((r for r in same if r.variant == "gradient"), None)


CAPTION_method_search = (
    "Runs for the search, judged on the validation split, in per cent: the highest robust accuracy "
    "(for standard training alone the highest clean accuracy) was taken, among those that lose no "
    "more clean accuracy than the study allows. All had {overrides}."
)


def search_section(queue: Queue) -> list[tuple[str, Sequence[Block]]]:
    """A section with every run of the search, if there was one."""
    jobs = {name: queue.job(name) for name in queue.names()}
    tried = {name: job for name, job in jobs.items() if "candidate" in job}
    if not tried:
        return []
    taken = {
        (job["method"], job["variant"]): result["chosen"]
        for name, job in jobs.items()
        if (result := queue.result(name)) is not None and "chosen" in result
    }
    cells = []
    for name, job in tried.items():
        found, candidate = queue.result(name), job["candidate"]
        figures = [percent(found[m]) for m in ("clean", "robust")] if found else ["", ""]
        chosen = taken.get((job["method"], job["variant"]), [])  # after the findings of "off"
        own = bool(candidate) and chosen[-len(candidate) :] == candidate
        cells.append([
            title_of(job["method"]), variant_of(job["variant"]), ", ".join(candidate), *figures,
            "taken" if own else "",
        ])  # fmt: skip
    alike = [o for o in next(iter(tried.values()))["overrides"] if not o.startswith("regulariser.")]
    headings = ["method", "variant", "tried", "clean", "robust (short PGD)", ""]
    caption = CAPTION_method_search.format(overrides=" ".join(alike))
    return [("How settings were chosen", [Table(headings, cells, caption)])]


CAPTION_unseen = (
    "The same networks under {threat}, for which the methods alone were not trained: accuracy in "
    "per cent, n = {n}. Δ against the method alone, and against the isotropic penalty where there "
    "is one, with paired 95 % intervals over the examples, in bold where they exclude zero."
)


def unseen_tables(study: Finished) -> list[Table]:
    """One for each threat that the study names beside its own."""
    return [_table(str(threat), runs) for threat, runs in study.unseen.items()]


def unseen_summary(study: Finished) -> list[str]:
    """The same in a sentence each."""
    return [
        line
        for threat, runs in study.unseen.items()
        for line in _sentence_unseen(str(threat), runs)
    ]


def _table(threat: str, runs: Sequence[RunResult]) -> Table:
    found, measure = _rows(runs), headline(runs[0].attacks)
    against = {_key(row): row for row in _rows(runs, "gradient") if row.variant == "taser"}
    control = any(row.gain is not None for row in against.values())
    seeds = any(row.gain_retrained for row in found)
    headings = ["method", "variant", MEASURES.get(measure, measure), "Δ",
                *(["with other seeds"] * seeds), *(["against ‖∇m‖²"] * control)]  # fmt: skip
    cells = []
    for row in found:
        other = against.get(_key(row))
        cells.append([
            title_of(row.method, row.finetuned), variant_of(row.variant),
            percent(row.accuracy[measure].value), emphasised(row, measure),
            *([retrained(row, measure)] * seeds),
            *([emphasised(other, measure) if other else ""] * control),
        ])  # fmt: skip
    caption = CAPTION_unseen.format(threat=threat, n=found[0].n[measure])
    return Table(headings, cells, caption + OTHER_SEEDS * seeds)


def _sentence_unseen(threat: str, runs: Sequence[RunResult]) -> list[str]:
    measure = headline(runs[0].attacks)
    found = [row for row in _rows(runs) if row.variant == "taser" and row.gain is not None]
    if not found:
        return []
    gains = ", ".join(
        f"{title_of(row.method, row.finetuned)} {emphasised(row, measure).strip('*')}"
        for row in found
    )
    helped = sum(row.supported(measure) for row in found)
    return [
        f"Under {threat}, for which the methods alone were not trained, TASER's gain is supported "
        f"for {helped} of {len(found)} comparisons: {gains}."
    ]


def _rows(runs: Sequence[RunResult], baseline: str = "off") -> list[Row]:
    return rows(runs, ["clean", headline(runs[0].attacks)], baseline=baseline)


def _key(row: Row) -> tuple[str, str, bool]:
    return row.method, row.variant, row.finetuned


CAPTION_equal_clean = (
    "Over all λ that were tried, equally many for both: of each penalty the λ that the validation "
    "split takes, by the highest robust accuracy there among those that lose at most so many "
    "points of clean accuracy against the method alone, judged on the test examples. Δ: TASER "
    "minus the isotropic penalty in points with paired 95 % intervals over the examples, in bold "
    "where they exclude zero; equal clean accuracy is where Δ clean is small."
)
ALLOWED = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)  # of clean accuracy


def equal_clean_table(study: Finished) -> Table | None:
    """A line for each pair of λ that some allowances take; None without curves of both."""
    found = list(_pairs(study))
    if not found:
        return None
    shown = ["clean", *judged(study.measures)]
    attack = MEASURES.get(shown[1], shown[1])
    seeds = any(ours.gain_retrained for _, ours, _ in found)
    headings = ["method", "clean loss allowed", "TASER: λ", "clean", attack, "isotropic: λ",
                "clean", attack, *(f"Δ {MEASURES.get(m, m)}" for m in shown),
                *([f"{attack}, other seeds"] * seeds)]  # fmt: skip
    cells = [
        [title_of(ours.method), levels,
         *(cell for row in (ours, theirs)
           for cell in (_lambda(row), *(percent(row.accuracy[m].value) for m in shown[:2]))),
         *(emphasised(ours, m) for m in shown), *([retrained(ours, shown[1])] * seeds)]
        for levels, ours, theirs in found
    ]  # fmt: skip
    return Table(headings, cells, CAPTION_equal_clean + OTHER_SEEDS * seeds)


def equal_clean_summary(study: Finished) -> list[str]:
    """The same in sentences."""
    lines = []
    for levels, ours, theirs in _pairs(study):
        measure = ours.headline
        figures = [
            f"(λ = {_lambda(row)}) {percent(row.accuracy[measure].value)} % {under(measure)} at "
            f"{percent(row.accuracy['clean'].value)} % clean"
            for row in (ours, theirs)
        ]
        gain, clean = (emphasised(ours, m).strip("*") for m in (measure, "clean"))
        points = "point" if levels == "1" else "points"
        lines.append(
            f"{title_of(ours.method)}, where validation may lose {levels} {points} of clean "
            f"accuracy: TASER {figures[0]}, the isotropic penalty {figures[1]}; TASER {gain} "
            f"points, clean {clean}."
        )
    return lines


def _pairs(study: Finished) -> Iterator[tuple[str, Row, Row]]:
    """The allowances in points, TASER's row with its gain over the isotropic one's, and that."""
    for method in dict.fromkeys(run.method for run in study.runs):
        runs = _comparable(study.runs, method)
        ours, theirs = (sorted({run.variant for run in runs if run.variant.startswith(name + MARK)})
                        for name in ("taser", "gradient"))  # fmt: skip
        if not ours or len(ours) != len(theirs):  # the luck of more draws
            continue
        picked: dict[tuple[str, str], list[float]] = {}
        for allowed in ALLOWED:
            pair = _taken(ours, runs, allowed), _taken(theirs, runs, allowed)
            if "off" not in pair:  # or one of them has nothing to offer
                picked.setdefault(pair, []).append(100 * allowed)
        for pair, levels in picked.items():
            both = Finished(study.queue, [run for run in runs if run.variant in pair])
            one, other = (
                next(row for row in both.rows(baseline=pair[1]) if row.variant == variant)
                for variant in pair
            )
            ends = sorted({levels[0], levels[-1]})
            yield " to ".join(f"{end:g}" for end in ends), one, other


def _taken(variants: Sequence[str], runs: Sequence[RunResult], allowed: float) -> str:
    """What the validation split takes of these and "off", its figures being means over seeds."""
    found: list[dict[str, Any]] = []
    for variant in ("off", *variants):
        own = [run.validation for run in runs if run.variant == variant]
        means = {name: fmean(figures[name] for figures in own) for name in ("clean", "robust")}
        found.append({"variant": variant, **means})
    return best(found, floor=found[0]["clean"] - allowed - 1e-9)["variant"]


def _comparable(runs: Sequence[RunResult], method: str) -> list[RunResult]:
    """A method's runs from scratch over λ, of the seeds that are finished for all of them."""
    own = [run for run in runs if run.method == method and not run.finetuned]
    over = [run for run in own if run.variant == "off" or MARK in run.variant]
    seeds = [{r.seed for r in over if r.variant == v} for v in {"off", *(r.variant for r in over)}]
    shared = set.intersection(*seeds)
    return [run for run in over if run.seed in shared]


def _lambda(row: Row) -> str:
    return row.variant.split(MARK)[1]


TUNED = (
    "TASER minus another penalty in points, at the settings of the table: paired 95 % intervals "
    "over the examples, in bold where they exclude zero."
)


def control_tables(study: Finished) -> list[Table]:
    """What there is of the two comparisons."""
    return [table for table in (_tuned(study), equal_clean_table(study)) if table is not None]


def control_summary(study: Finished) -> list[str]:
    """Where TASER is ahead of the isotropic penalty, and where behind: as set, and over λ."""
    pairs = _against(study, "gradient")
    if not pairs:
        return equal_clean_summary(study)
    said = []
    for words, change in (
        ("ahead", "raised"), ("behind", "lowered"), ("not told apart", "left")
    ):  # fmt: skip
        names = [
            title_of(row.method, row.finetuned)
            for row in pairs
            if row.gain is not None and verdict(row.gain[row.headline]) == change
        ]
        if names:
            said.append(f"{words} for {', '.join(names)}")
    attack = MEASURES.get(pairs[0].headline, pairs[0].headline)
    line = f"Against the isotropic penalty, under {attack}, TASER is {'; '.join(said)}."
    return [line, *equal_clean_summary(study)]


def _against(study: Finished, baseline: str) -> list[Row]:
    """TASER's rows with their gain over `baseline`, where a method has both."""
    rows = study.rows(baseline=baseline)
    return [row for row in rows if row.variant == "taser" and row.gain is not None]


def _tuned(study: Finished) -> Table | None:
    variants = dict.fromkeys(run.variant for run in study.runs)
    others = [v for v in variants if v not in ("off", "taser") and MARK not in v]
    pairs = [(other, row) for other in others for row in _against(study, other)]
    if not pairs:
        return None
    first = pairs[0][1]
    measures = [m for m in first.accuracy if m != "worst" or m == first.headline]
    seeds = any(row.gain_retrained for _, row in pairs)
    cells = [
        [title_of(row.method, row.finetuned), variant_of(other),
         *(emphasised(row, m) for m in measures), *([retrained(row, row.headline)] * seeds)]
        for other, row in pairs
    ]  # fmt: skip
    attack = MEASURES.get(first.headline, first.headline)
    headings = ["method", "against", *(f"Δ {MEASURES.get(m, m)}" for m in measures),
                *([f"{attack}, other seeds"] * seeds)]  # fmt: skip
    return Table(headings, cells, TUNED + OTHER_SEEDS * seeds)
