"""A queue's finished runs as records: small enough for a repository, whole enough to go on."""

from pathlib import Path

from taser.files import write_atomically

from .queue import Queue
from .table_config import job_name

RECORDS = ("job.json", "result.json", "run/config.yaml", "run/log.jsonl")
WEIGHTS = ("run/best.safetensors", "run/model.json", "run/result.json")


def keep(queue: Queue, to: Path) -> list[str]:
    """Copy what every finished run was asked and what came of it into the queue at `to`.

    Weights are left behind, but for the networks that other runs of the queue begin with or borrow
    attacks from. Reports can be made from the copy, and a study that is started there goes on
    with what is missing. Returns the names of the runs that were copied.
    """
    finished = [name for name in queue.names() if queue.finished(name)]
    if not finished:
        raise ValueError(f"no run in {queue.folder} is finished yet")
    needed = _needed(queue)
    for name in finished:
        for file in (*RECORDS, *(WEIGHTS if name in needed else ())):
            source = queue.folder / name / file
            if source.exists():
                content = source.read_bytes()
                if source.suffix == ".yaml":  # weights of the study, named within it
                    for home in (queue.folder, queue.folder.parent):
                        content = content.replace(f"{home}/".encode(), b"")
                write_atomically(to / name / file, content)
    return finished


def _needed(queue: Queue) -> set[str]:
    """The runs whose weights others ask for: to start from, or for attacks that transfer."""
    jobs = [queue.job(name) for name in queue.names()]
    starts = {job["start"] for job in jobs if "start" in job}
    return starts | {job_name("standard", "off", job["seed"]) for job in jobs if job.get("audited")}
