"""`taser bench`: what things cost on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ._options import Out, Threads, progress_bar, show, use_threads, with_json

if TYPE_CHECKING:
    from taser.studies.overhead import Workload

app = typer.Typer(help="What things cost on this machine.", no_args_is_help=True)
Repetitions = Annotated[int, typer.Option(min=1, help="Of every measurement.")]
Method = Annotated[list[str] | None, typer.Option(help="Only these; may be repeated.")]
Width = Annotated[int | None, typer.Option(help="Only the network of this width.")]


@app.command()
@with_json
def overhead(
    out: Out = Path("out/overhead"),
    repetitions: Repetitions = 9,
    threads: Threads = None,
    method: Method = None,
    width: Width = None,
) -> None:
    """TASER off, the paper's way and by default, on each method: half an hour on two cores.

    Example: taser bench overhead --method standard --method pgd --width 16 --out out/overhead
    """
    from taser.report import overhead as report
    from taser.studies.overhead import measure

    use_threads(threads)
    workloads, methods = _asked(width, method)
    with progress_bar() as progress:
        result = measure(
            workloads, methods, repetitions=repetitions,
            progress=progress, keep=lambda so_far: report.write(so_far, out),
        )  # fmt: skip
    show(report.write(result, out), report.summary(result))


@app.command()
@with_json
def memory(
    out: Out = Path("out/memory"),
    threads: Threads = None,
    method: Method = None,
    width: Width = None,
) -> None:
    """Peak memory in the same settings; other work on the machine does no harm.

    Example: taser bench memory --method pgd --out out/memory
    """
    from taser.report import memory as report
    from taser.studies.memory import measure

    use_threads(threads)
    with progress_bar() as progress:
        result = measure(*_asked(width, method), progress=progress)
    show(report.write(result, out), report.summary(result))


@app.command()
@with_json
def growth(
    out: Out = Path("out/growth"), repetitions: Repetitions = 3, threads: Threads = None
) -> None:
    """Time and memory of a step against probes, batch, pixels and depth, with a plot.

    Example: taser bench growth --out out/growth
    """
    from taser.report import growth as report
    from taser.studies.growth import measure

    use_threads(threads)
    with progress_bar() as progress:
        result = measure(repetitions=repetitions, progress=progress)
    show(report.write(result, out), report.summary(result))


@app.command()
@with_json
def switches(
    out: Out = Path("out/switches"), repetitions: Repetitions = 5, threads: Threads = None
) -> None:
    """What each switch saves alone: of the attack in training, and of TASER's penalty.

    Example: taser bench switches --threads 1 --out out/switches
    """
    from taser.report import switches as report
    from taser.studies.switches import measure

    use_threads(threads)
    with progress_bar() as progress:
        result = measure(repetitions=repetitions, progress=progress)
    show(report.write(result, out), report.summary(result))


def _asked(width: int | None, method: list[str] | None) -> "tuple[list[Workload], list[str]]":
    """The networks of that width and those methods, or all."""
    from taser.compare._comparison_config import METHODS
    from taser.studies.overhead import WORKLOADS

    if unknown := set(method or ()) - set(METHODS):
        raise ValueError(f"methods are {', '.join(METHODS)}; got {', '.join(sorted(unknown))}")
    workloads = [workload for workload in WORKLOADS if width in (None, workload.width)]
    if not workloads:
        widths = ", ".join(str(workload.width) for workload in WORKLOADS)
        raise ValueError(f"the networks have widths {widths}; got {width}")
    return workloads, method or list(METHODS)
