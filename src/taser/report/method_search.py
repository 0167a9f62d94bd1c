"""What was tried on the validation split before the runs of a table, and what was taken."""

from collections.abc import Sequence

from taser.studies.queue import Queue

from .method_table import percent, title_of, variant_of
from .page import Block
from .table import Table

CAPTION = (
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
    caption = CAPTION.format(overrides=" ".join(alike))
    return [("How settings were chosen", [Table(headings, cells, caption)])]
