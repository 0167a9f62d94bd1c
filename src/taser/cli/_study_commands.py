"""`taser study`: experiments, each with a report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ._options import Jobs, Out, progress_bar, show, with_json

if TYPE_CHECKING:
    from taser.compare._comparison_config import TableConfig
    from taser.compare._jobs import Queue

app = typer.Typer(help="Experiments, each with a report.", no_args_is_help=True)
RunThreads = Annotated[int | None, typer.Option(min=1, help="CPU threads of each run.")]


@app.command()
@with_json
def table(
    recipe: Annotated[str, typer.Option(help="A table's YAML, or a name as studies/digits.")],
    out: Out = Path("out/table"),
    jobs: Jobs = 1,
    threads: RunThreads = None,
) -> None:
    """Methods × {off, TASER, control} × seeds, as a queue of runs; started again, it goes on.

    Example: taser study table --recipe studies/digits --jobs 2 --out out/digits

    On a cluster start `taser study work OUT` in as many places as you like: each takes the next
    run that nobody has. The report can be made at any time by `taser report OUT`.
    """
    from taser.compare._comparison_config import read_table_config

    queue = run_queue(read_table_config(recipe), out, jobs, threads)
    show(*report_on(queue, out), "rows.json")


def report_on(queue: "Queue", out: Path) -> tuple[Path, list[str]]:
    """The report of a table or an ablation, from the runs that are finished by now."""
    from taser.report import _comparison_report as method_study
    from taser.report._method_tables import Finished

    study = Finished.of(queue)
    return method_study.write(study, out, title=f"Robust training methods: {out.name}")


def run_queue(config: "TableConfig", out: Path, jobs: int, threads: int | None) -> "Queue":
    """Put a table's runs into the queue at out/runs and have them done by `jobs` processes."""
    import os

    from taser.compare._jobs import Queue, run_workers

    queue = Queue(out / "runs")
    queue.add(config.jobs())
    each = threads or max(1, (os.cpu_count() or 1) // jobs)
    with progress_bar() as progress:
        run_workers(["study", "work", str(out)], queue, jobs, each, list(config.jobs()), progress)
    return queue


@app.command()
def work(
    out: Annotated[Path, typer.Argument(help="A folder made by `taser study table`.")],
) -> None:
    """Do the runs of a table that nobody else does; several of these may work at once.

    Example: taser study work out/table
    """
    from taser.compare._comparison import do
    from taser.compare._jobs import Queue

    queue = Queue(out / "runs")
    if not queue.names():
        raise ValueError(f"there is no queue of runs in {out}: start one with `taser study table`")
    queue.work(do, queue.names())


@app.command()
def keep(
    out: Annotated[Path, typer.Argument(help="A folder made by `taser study table`.")],
    to: Annotated[Path, typer.Argument(help="A folder for the records, in a repository perhaps.")],
) -> None:
    """Copy the records of the finished runs, without weights; a study started there goes on.

    Example: taser study keep out/cifar10 results/cifar10
    """
    from taser.compare._comparison import keep
    from taser.compare._jobs import Queue

    copied = keep(Queue(out / "runs"), to / "runs")
    typer.echo(f"Kept in {to}: {len(copied)} finished run(s). Their report: taser report {to}")
