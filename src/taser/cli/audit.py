"""`taser audit`: whether to believe a claim of robustness."""

from pathlib import Path
from typing import Annotated

import typer

from .common import VERDICT, Out, Root, Seed, Threads, progress_bar, show
from .machine import with_json
from .subject import (
    Data,
    Epsilon,
    Model,
    Norm,
    Options,
    Target,
    Weights,
    examples_of,
    subject,
    threat_for,
)

ENOUGH = 10_000  # training examples for a surrogate


@with_json
def audit(
    model: Model,
    data: Data = None,
    weights: Weights = None,
    option: Options = None,
    epsilon: Epsilon = "8/255",
    norm: Norm = "linf",
    examples: Annotated[
        int, typer.Option("--examples", "-n", min=30, help="Of the test part.")
    ] = 200,
    steps: Annotated[int, typer.Option(min=1, help="Of PGD.")] = 50,
    restarts: Annotated[int, typer.Option(min=1, help="Random starts of PGD.")] = 3,
    queries: Annotated[int, typer.Option(min=1, help="Of attacks without gradients.")] = 1000,
    surrogate: Annotated[
        bool, typer.Option(help="Train a quick undefended model on the training part, to transfer.")
    ] = True,
    seed: Seed = 0,
    threads: Threads = None,
    out: Out = Path("out/audit"),
    root: Root = None,
    target: Target = None,
) -> None:
    """Ask of a model what the literature asks of a defence; the exit code says what came of it.

    Example: taser audit --model out/run --epsilon 0.1

    Exit code 0: trust, no check failed; 3: do not trust; 1: the audit could not be made. Killed
    and started again, it goes on.
    """
    from taser.data.subset import subset
    from taser.device import accelerator
    from taser.evaluation.audit import audit as run
    from taser.evaluation.audit import undefended
    from taser.report import audit as report

    dataset, network = subject(model, weights, data, option, root, threads, target)
    threat = threat_for(dataset, norm, epsilon)
    x, y = examples_of(dataset, examples)
    with progress_bar() as progress:
        other = None
        if surrogate:
            train, rows = dataset.train, subset(len(dataset.train), ENOUGH)
            classes = len(dataset.classes or ())
            other = undefended(train.rows(rows), train.y[rows], classes, progress=progress)
            other = other.to(accelerator())
        result = run(
            network, x, y, threat=threat, surrogate=other, steps=steps, restarts=restarts,
            queries=queries, seed=seed, out=out / "batches", progress=progress,
        )  # fmt: skip
    typer.echo(report.table(result).markdown())
    page = report.write(result, f"{model} on {dataset.name}, {threat}", out)
    show(page, report.summary(result))
    if result.verdict != "trust":
        raise typer.Exit(VERDICT)
