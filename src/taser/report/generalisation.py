"""What a run gets right of attacked training examples, and of others: how much there is to mend."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from taser.studies.results import RunResult
from taser.studies.table_config import job_name
from taser.training.log import read_log

from .closer_tables import by_name
from .finished import Finished
from .table import Table

LAST = 0.1  # of training: the part whose batches are counted

CAPTION = (
    "Per cent right at the end of training: training examples under the method's own attack in the "
    "last tenth of the steps (TRADES's is weaker than PGD, so that its gap looks larger), and "
    "validation examples under a short PGD. A penalty can raise robust accuracy on new examples by "
    "closing the gap between the two; where there is none, it competes with the loss. Means over "
    "seeds."
)


def generalisation_table(study: Finished) -> Table | None:
    """Of the runs trained on attacked examples; None if there are none, or no logs."""
    cells = []
    for name, runs in by_name(study.runs).items():
        found = [each for each in (_at_the_end(_log(study, run)) for run in runs) if each]
        if found:
            train, held_out = (100 * mean(side) for side in zip(*found, strict=True))
            gap = f"{train - held_out:+.1f}"
            cells.append([name, f"{train:.1f}", f"{held_out:.1f}", gap, str(len(found))])
    if not cells:
        return None
    header = ["run", "attacked training examples", "validation examples", "gap", "seeds"]
    return Table(header, cells, CAPTION)


def _log(study: Finished, run: RunResult) -> list[dict[str, Any]]:
    kind = "3-tune" if run.finetuned else "2-train"
    return read_log(study.queue.folder / job_name(run.method, run.variant, run.seed, kind) / "run")


def _at_the_end(log: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """The shares that are right of attacked training and validation examples."""
    validated = [line["robust"] for line in log if line["kind"] == "validation"]
    start = (1 - LAST) * max((line["step"] for line in log), default=0)
    trained = [line["attacked"] for line in log if "attacked" in line and line["step"] > start]
    return (mean(trained), validated[-1]) if trained and validated else None
