"""`taser compare` and `taser demo`: methods trained and evaluated alike, or models side by side."""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from ._options import (
    ERROR,
    Out,
    Track,
    TrustCode,
    default_folder,
    progress_bar,
    show,
    track_numbers,
    with_json,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

    from taser.compare import Results

KINDS = """A comparison's YAML, or digits, fashion-mnist, cifar10 or demo; with --report, --status
or --keep its folder; or two or more folders made by `taser evaluate`."""


@with_json
def compare(
    what: Annotated[list[str], Argument(help=KINDS.replace("\n", " "))],
    out: Annotated[Path | None, Option(help="For runs and report; by default out/<what>.")] = None,
    jobs: Annotated[int | None, Option(min=1, help="Runs at once; by default 1 or GPUs.")] = None,
    threads: Annotated[int | None, Option(min=1, help="CPU threads of each run.")] = None,
    cluster: Annotated[str | None, Option(help="A Dask scheduler, tcp://host:8786.")] = None,
    slurm: Annotated[
        str | None, Option(help="Each run a Slurm job with these settings: timeout_min=600 ….")
    ] = None,
    report: Annotated[bool, Option("--report", help="On finished runs, or on records.")] = False,
    status: Annotated[bool, Option("--status", help="How many finished, which failed.")] = False,
    keep: Annotated[
        Path | None, Option(help="Keep the finished runs here as records, without weights.")
    ] = None,
    track: Track = None, trust_code: TrustCode = False,
) -> None:  # fmt: skip
    """Train and evaluate methods × variants × seeds, or show evaluated models side by side.

    Example: taser compare digits --jobs 2 --out out/digits

    Started again, it goes on. `taser compare out/digits --report` makes the report of the runs that
    are finished by now; `--keep results/digits` writes table.md, figures.json and records.jsonl.xz.
    The exit code is 1 while runs are missing. With two folders, `taser compare out/evaluate/one
    out/evaluate/other`: paired intervals and McNemar's test.
    """
    from taser.compare import read_results, write_records
    from taser.report import write_comparison

    if report + status + (keep is not None) + (len(what) > 1) > 1:
        raise ValueError("give one of --report, --status and --keep, which take one folder")
    if len([given for given in (jobs, cluster, slurm) if given is not None]) > 1:
        raise ValueError("give one of --jobs, --cluster and --slurm")
    folder = Path(what[0])
    if status:
        _status(folder)
    elif keep is not None:
        results = read_results(folder)
        write_comparison(results, folder)
        kept = write_records(folder, keep)
        typer.echo(f"{results.completeness}\nKept in {keep}: {kept} finished run(s)")
        _exit_if_incomplete(results)
    elif report:  # what was kept is not written over
        own = folder if (folder / "runs").is_dir() else Path("out") / folder.name
        _report(read_results(folder), out or own, track=track)
    elif len(what) > 1:
        names = [Path(name).resolve().name for name in what]
        _side_by_side([Path(name) for name in what], out or default_folder("compare", *names))
    elif folder.is_dir():
        kinds = "a comparison's takes --report, --status or --keep; `taser evaluate`'s come in twos"
        raise ValueError(f"{folder} is a folder: {kinds}")
    else:
        out = out or Path("out") / folder.stem
        with _executor(cluster, slurm, out) as executor:
            _run(
                what[0], out, executor, track=track, jobs=jobs, threads=threads,
                trust_code=trust_code,
            )  # fmt: skip


def _executor(
    cluster: str | None, slurm: str | None, out: Path
) -> "AbstractContextManager[Executor | None]":
    """Where the runs are computed; None: in local processes."""
    from taser.compare._executors import dask_executor, slurm_executor

    if cluster is not None:
        return dask_executor(cluster)
    return nullcontext(None if slurm is None else slurm_executor(slurm, out / "slurm"))


def _status(folder: Path) -> None:
    """What is finished and what failed; exit code 1 while runs are missing."""
    from taser.compare._runs import Runs

    runs = Runs(folder / "runs")
    if not (names := runs.names()):
        raise ValueError(f"there are no runs in {folder}: `taser compare RECIPE` adds them")
    typer.echo(runs.status(names)[2])
    for name, message in runs.failures().items():
        typer.echo(f"{name}: {message}")
    if not all(map(runs.finished, names)):
        raise typer.Exit(ERROR)


def _run(
    name: str, out: Path, executor: "Executor | None" = None, title: str | None = None,
    track: str | None = None, **options: Any,
) -> None:  # fmt: skip
    """Make a comparison and its report, of what there is if runs failed."""
    from taser.compare import RunsFailed, read_results
    from taser.compare import compare as run

    with suppress(RunsFailed), progress_bar() as progress:  # the report names them
        run(name, out, executor=executor, progress=progress, **options)
    _report(read_results(out), out, title, track)


def _exit_if_incomplete(results: "Results") -> None:
    if results.missing:
        raise typer.Exit(ERROR)


def _report(
    results: "Results", out: Path, title: str | None = None, track: str | None = None
) -> None:
    """Write the report; print what is missing and the tables that come first."""
    from taser.report import write_comparison
    from taser.report._comparison_report import accuracy_tables, summary
    from taser.report._comparison_tables import audit_table

    page = write_comparison(results, out, title=title)
    numbers = {f"{row.method}{' fine-tuned' * row.finetuned}/{row.variant}/{measure}": share.value
               for row in results.rows() for measure, share in row.accuracy.items()}  # fmt: skip
    track_numbers(track, out, numbers)
    typer.echo("\n".join(summary(results)) + "\n")
    for table in (*accuracy_tables(results), audit_table(results)):
        if table is not None:
            typer.echo(table.markdown())
    show(page, [], "figures.json")
    _exit_if_incomplete(results)


def _side_by_side(folders: Sequence[Path], out: Path) -> None:
    """Models on the same examples, with paired intervals and McNemar's test."""
    from taser.evaluation import Evaluation, compare
    from taser.report import _evaluation_report as report

    found: dict[str, Evaluation] = {}
    for folder in folders:
        if not (path := folder / "evaluation.json").is_file():
            raise FileNotFoundError(f"no evaluation is in {folder}: `taser evaluate` makes one")
        name = folder.name if folder.name not in found else str(folder)
        found[name] = Evaluation.from_json(path.read_text())
    compared, threat = compare(found), next(iter(found.values())).threat
    typer.echo(report.comparison_table(compared).markdown())
    typer.echo(report.differences_table(compared).markdown())
    show(report.write_comparison(compared, threat, out), report.comparison_summary(compared))


@with_json
def demo(
    out: Out = Path("out/demo"),
    jobs: Annotated[int, Option(min=1, help="Runs at the same time.")] = 2,
) -> None:
    """Train digits without and with TASER, attack, audit, and report: minutes, no download.

    Example: taser demo --out out/demo
    """
    _run("demo", out, title="TASER on handwritten digits", jobs=jobs, threads=1)
    pages = "docs/training.md to train and fine-tune, docs/audit.md to judge a model of others"
    typer.echo(f"Where to look next: README.md for two lines in your own loop, {pages}.")
