"""What was tried on the validation split before the runs of a table, and what was taken."""

import json
from collections.abc import Sequence

from taser.studies.queue import Queue

from .method_table import NAMES, VARIANTS, percent
from .page import Block
from .table import Table


def search_section(queue: Queue) -> list[tuple[str, Sequence[Block]]]:
    """A section with every short run of the search, if there was one."""
    jobs = {
        name: json.loads((queue.folder / name / "job.json").read_text()) for name in queue.names()
    }
    tried = {name: job for name, job in jobs.items() if "candidate" in job}
    if not tried:
        return []
    results = {name: queue.result(name) for name in jobs}
    taken = {
        (job["method"], override)
        for name, job in jobs.items()
        if "candidate" not in job and (result := results[name]) is not None
        for override in result["chosen"]
    }
    cells = []
    for name, job in tried.items():
        found = results[name]
        figures = [percent(found[m]) for m in ("clean", "robust")] if found else ["", ""]
        own = all((job["method"], override) in taken for override in job["candidate"])
        names = [NAMES.get(job["method"], job["method"]), VARIANTS.get(job["variant"], "")]
        cells.append([*names, ", ".join(job["candidate"]), *figures, "taken" if own else ""])
    caption = (
        "Short runs on the validation split, in per cent: the highest robust accuracy (for "
        "standard training alone the highest clean accuracy) was taken, among those that lose no "
        "more clean accuracy than the study allows. Overrides that make them short: "
        + " ".join(next(iter(tried.values()))["overrides"])
        + "."
    )
    headings = ["method", "variant", "tried", "clean", "robust (short PGD)", ""]
    return [("How settings were chosen", [Table(headings, cells, caption)])]
