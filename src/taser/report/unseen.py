"""The runs of a table under attacks that their training did not know."""

from collections.abc import Sequence

from taser.studies.results import RunResult
from taser.studies.table_rows import Row, headline, rows

from .finished import Finished
from .method_table import MEASURES, emphasised, percent, title_of, variant_of
from .seed_table import OTHER_SEEDS, retrained
from .table import Table

CAPTION = (
    "The same networks under {threat}, for which the methods alone were not trained: accuracy in "
    "per cent, n = {n}. Δ against the method alone, and against the isotropic penalty where there "
    "is one, with paired 95 % intervals over the examples, in bold where they exclude zero."
)


def unseen_tables(study: Finished) -> list[Table]:
    """One for each threat that the study names beside its own."""
    return [_table(str(threat), runs) for threat, runs in study.unseen.items()]


def unseen_summary(study: Finished) -> list[str]:
    """The same in a sentence each."""
    return [line for threat, runs in study.unseen.items() for line in _sentence(str(threat), runs)]


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
    caption = CAPTION.format(threat=threat, n=found[0].n[measure])
    return Table(headings, cells, caption + OTHER_SEEDS * seeds)


def _sentence(threat: str, runs: Sequence[RunResult]) -> list[str]:
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
