"""The finished runs of a study, read once for all that is said of them."""

from dataclasses import dataclass
from functools import cached_property

from taser.attacks import Threat
from taser.studies.queue import Queue
from taser.studies.results import RunResult, results, unseen
from taser.studies.table_rows import Row, rows


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
