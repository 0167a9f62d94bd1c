"""The report of a comparison: page, Markdown, LaTeX and JSON, with its figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from safetensors.torch import load_file

import taser
from taser._files import write_atomically
from taser.compare import Results, Row, RunResult
from taser.compare._comparison_config import method_title, variant_label
from taser.scores import pretrained
from taser.scores._adapters import SHIPPED
from taser.training._build import build_data
from taser.training._run_folder import read_data_config

from . import _comparison_tables as tables
from ._comparison_tables import label_of
from ._evaluation_report import centred
from ._page import Block, Page, Picture, Table, png, show_image

TRAINING = (
    "Validation accuracy over training, first seed: solid under a short PGD, dashed clean; dots: "
    "where the evaluated weights come from (another epoch's have another clean accuracy). "
    "A solid line that falls while training goes on is robust overfitting."
)
CURVES = (
    "Accuracy as ε grows, under PGD on the margin (20 steps, 2 starts: a quick upper bound) "
    "on {n} test examples, first seed; dashed: the ε of the table. It should fall to zero."
)
IMAGES = (
    "Test images; the attacked images that break the first network of the table; the difference; "
    "the score s(x), which points from an image to where images are likely."
)
COLOURS = {"off": "#6b7280", "taser": "#2563eb", "gradient": "#d97706", "other": "#059669"}
KINDS = {"off": "method alone", "taser": "TASER", "gradient": "‖∇m‖²", "other": "others"}
MOST_NAMED = 6  # variants in a legend; of more only the kinds are named
SHOWN = 8  # attacked images


def write_comparison(results: Results, out: Path | str, *, title: str | None = None) -> Path:
    """report.html, table.md, table.tex and figures.json in `out`; the page's path."""
    out = Path(out)
    sections = [(heading, blocks) for heading, blocks in _sections(results) if blocks]
    found = [block for _, blocks in sections for block in blocks if isinstance(block, Table)]
    write_atomically(out / "table.md", "\n\n".join(table.markdown() for table in found))
    write_atomically(out / "table.tex", "\n".join(table.latex() for table in found))
    write_atomically(out / "figures.json", results.figures())
    page = Page(
        title or f"Robust training methods: {results.folder.name}", summary(results),
        sections, f"taser {taser.__version__}; every run is in its own folder.",
    )  # fmt: skip
    return page.write(out / "report.html")


def summary(results: Results) -> list[str]:
    """What is missing, if anything; the conclusion; and what it rests on."""
    rows = results.rows()
    others = list(dict.fromkeys(row.variant for row in rows if row.gain is not None))
    variant = "taser" if "taser" in others else next(iter(others), "off")
    alone = {(row.method, row.finetuned): row for row in rows if row.variant == "off"}

    def finding(row: Row) -> str:
        before, (clean, robust) = alone[row.method, row.finetuned], ("clean", row.headline)
        both = [
            f"{100 * before.accuracy[m].value:.1f} → {100 * row.accuracy[m].value:.1f} %"
            for m in (robust, clean)
        ]
        name = method_title(row.method, row.finetuned)
        return f"{name} {both[0]} ({row.verdict}; clean {both[1]})"

    found = [finding(row) for row in rows if row.variant == variant and row.gain is not None]
    under = f"Accuracy under {label_of(rows[0].headline).replace('AA', 'AutoAttack')}"
    name = variant_label(variant).removeprefix("+ ")
    conclusion = [f"{under} without → with {name}: {'; '.join(found)}."] if found else []
    state, basis = results.completeness, _evaluations(results)
    return [state, *conclusion, basis] if results.missing else [*conclusion, f"{state} {basis}"]


def accuracy_tables(results: Results) -> list[Table]:
    """Accuracies, gains by seed and costs, from scratch and fine-tuned."""
    kinds = [[row for row in results.rows() if row.finetuned == kind] for kind in (False, True)]
    makers = (tables.main_table, tables.seed_table, tables.cost_table)
    found = [make(rows) for rows in kinds if rows for make in makers]
    return [table for table in found if table is not None]


def _sections(results: Results) -> Iterator[tuple[str, list[Block]]]:
    def drawn(figure: Figure | None, caption: str) -> list[Block]:
        return [Picture(png(figure), caption)] if figure else []

    def present(table: Table | None) -> list[Block]:
        return [table] if table else []

    yield "Accuracy", [*accuracy_tables(results)]
    yield "Attacked images", drawn(draw_images(results), IMAGES)
    yield "Against other penalties", present(tables.penalty_table(results))
    if found := validations(results):
        yield "Training", drawn(draw_training(found), TRAINING)
    seed = min(run.seed for run in results.runs)
    if first := [run for run in results.runs if "curve" in run.diagnostics and run.seed == seed]:
        n = first[0].diagnostics["curve"]["n"]
        yield "Accuracy against ε", drawn(draw_curves(first), CURVES.format(n=n))
    yield "Audits", present(tables.audit_table(results))
    yield "Search", present(tables.search_table(results))
    findings: list[Block] = [
        f"{run.method} {run.variant}, seed {run.seed}: {finding.message}"
        for run in results.runs for evaluation in run.evaluations for finding in evaluation.findings
    ]  # fmt: skip
    yield "Findings of the evaluation", findings or ["The attacks reported nothing unusual."]
    job = results.runs[0].record["job"]
    used = results.runs[0].evaluations[0].provenance.versions
    versions = ", ".join(f"{name} {version}" for name, version in used.items())
    settings = (
        f"First run: recipe {job['recipe']} with {' '.join(job['overrides'])}. Every run's folder "
        "holds its whole configuration, its log and its evaluation."
    )
    yield (
        "Configuration and versions", [settings, _evaluations(results), f"Versions: {versions}."]
    )  # fmt: skip


def _evaluations(results: Results) -> str:
    evaluations = results.runs[0].evaluations
    attacks = ", ".join(
        f"{label_of(name)} on {e.n} examples" for e in evaluations for name in e.attacks
    )
    return f"Attacks at {evaluations[0].threat}: {attacks}."


def kind(variant: str) -> str:
    """The kind of a variant: "taser λ=0.1" and "TASER as it is" are both "taser"."""
    first = variant.split()[0].lower()
    return first if first in COLOURS else "other"


def _label(variant: str) -> str:
    return "method alone" if variant == "off" else variant_label(variant)


def line_styles(variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Matplotlib's keywords for the line of each variant.

    >>> line_styles(["off", "taser"])["taser"]
    {'color': '#2563eb', 'label': '+ TASER'}
    """
    if len(variants) <= MOST_NAMED:
        return {name: {"color": COLOURS[kind(name)], "label": _label(name)} for name in variants}
    found: dict[str, dict[str, Any]] = {}
    named: set[str] = set()
    for name in variants:
        own = kind(name)
        thin = {"lw": 0.8, "alpha": 0.5, "zorder": 1} if own == "other" else {}
        found[name] = {"color": COLOURS[own], "label": "_" if own in named else KINDS[own], **thin}
        named.add(own)
    return found


Validated = dict[str, tuple[Sequence[dict[str, Any]], int | None]]
"""By variant: {"epoch", "step", "clean", "robust"} of each validation, and the best step."""


def validations(results: Results) -> dict[str, Validated]:
    """By method and variant, those of the first seed, in runs that are not finished as well."""
    found: dict[str, Validated] = {}
    for record in results.records:
        job = record["job"]
        if record.get("validation") and "candidate" not in job:
            own = found.setdefault(method_title(job["method"], job["finetuned"]), {})
            best_step = record.get("result", {}).get("best_step")
            own.setdefault(job["variant"], (record["validation"], best_step))
    return found


def draw_training(found: Mapping[str, Validated]) -> Figure:
    """Validation accuracy over training, a panel for each method.

    Solid: under a short PGD; dashed: clean; a dot: where the evaluated weights come from.
    """
    figure, panels = _panels(list(found), (3.6, 2.7), columns=3)
    for axes, variants in zip(panels, found.values(), strict=True):
        styles = line_styles(list(variants))
        for variant, (seen, best_step) in variants.items():
            epochs = [line["epoch"] for line in seen]
            dots = [number for number, line in enumerate(seen) if line["step"] == best_step]
            dashed = {"ls": "--", "lw": 1, "label": "_"}
            for measure, other in (("robust", {}), ("clean", dashed)):
                values = [100 * line[measure] for line in seen]
                style = {**styles[variant], **other}
                axes.plot(epochs, values, marker="o", ms=4, markevery=dots, **style)
        axes.set(ylim=(0, 102), xlabel="epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("validation accuracy, %")
    _legend_above(figure)
    return figure


def draw_curves(runs: Sequence[RunResult]) -> Figure:
    """Accuracy over ε, a panel for each method."""
    methods: dict[str, list[RunResult]] = {}
    for run in runs:
        methods.setdefault(method_title(run.method, run.finetuned), []).append(run)
    figure, panels = _panels(list(methods), (4.2, 3.0))
    for axes, own in zip(panels, methods.values(), strict=True):
        styles = line_styles([run.variant for run in own])
        for run in own:
            curve = run.diagnostics["curve"]
            accuracies = [100 * a for a in curve["accuracies"]]
            axes.plot(curve["epsilons"], accuracies, "o-", markersize=3, **styles[run.variant])
        axes.axvline(own[0].threat.epsilon, color="0.5", linestyle="--", linewidth=0.8)
        axes.set(xlabel="ε", ylabel="accuracy, %", ylim=(-2, 102))
        axes.legend(frameon=False, fontsize=8)
    return figure


def _panels(
    titles: Sequence[str], size: tuple[float, float], *, columns: int = 2
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each title; each has this size."""
    columns = min(columns, len(titles))
    lines = -(-len(titles) // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained")
    panels = [figure.add_subplot(lines, columns, place) for place in range(1, len(titles) + 1)]
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, fontsize=10)
    return figure, panels


def _legend_above(figure: Figure) -> None:
    """One legend for all panels, above them: inside it would hide points."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=9, frameon=False)


def draw_images(results: Results) -> Figure | None:
    """Images that broke the first run: clean, attacked, difference, score; None without them.

    Records have no images, and only data with a shipped score are drawn.
    """
    first = results.runs[0]
    home = results.folder / "runs" / first.record["run"]
    # The largest evaluation. Folders are named after the wanted number of examples.
    kept = sorted(home.glob("evaluation-*"), key=lambda path: int(path.name.split("-")[1]))
    if not (kept and (kept[-1] / "attacked.safetensors").exists()):
        return None
    data, evaluation = read_data_config(home / "run"), first.evaluations[0]
    broken = (evaluation.clean & ~evaluation.robust).nonzero()[:SHOWN, 0]
    if data.name not in SHIPPED or len(broken) == 0:
        return None
    x = build_data(data).test.rows(evaluation.index[broken])
    attacked = load_file(kept[-1] / "attacked.safetensors")["x"][broken]
    lines = {"image": x, "attacked": attacked, "change": centred(attacked - x),
             "score": centred(pretrained(data.name).at(timestep=50)(x))}  # fmt: skip
    grey = x.shape[1] == 1
    figure = Figure(figsize=(1.1 * len(x), 4.6), layout="constrained")
    grid = figure.subplots(len(lines), len(x), squeeze=False)
    for axes, (name, images) in zip(grid, lines.items(), strict=True):
        axes[0].set_ylabel(name)
        colours = "RdBu" if grey and name in ("change", "score") else "gray"
        for place, image in zip(axes, images, strict=True):
            show_image(place, image, colours)
    return figure
