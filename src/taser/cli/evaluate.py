"""`taser evaluate`: robust accuracy of any classifier."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import VERDICT, Root, Seed, Threads, progress_bar, show
from .machine import with_json
from .subject import Data, Epsilon, Model, Norm, Options, Target, Weights, subject, threat_for

if TYPE_CHECKING:
    from taser.attacks import Threat

CURVE = 200  # examples for the curve against ε


@with_json
def evaluate(
    model: Model,
    data: Data = None,
    weights: Weights = None,
    option: Options = None,
    epsilon: Epsilon = "8/255",
    norm: Norm = "linf",
    examples: Annotated[
        int, typer.Option("--examples", "-n", "--n", min=1, help="The same for every model.")
    ] = 1000,
    first: Annotated[bool, typer.Option("--first", help="The first ones, not a draw.")] = False,
    attacks: Annotated[
        str, typer.Option(help="autoattack, spsa, spsa-strong, pgd, fgsm, noise, apgd-ce, …")
    ] = "autoattack,spsa",
    unbounded: Annotated[
        bool, typer.Option("--unbounded", help="Inputs may leave [0, 1]; tables always may.")
    ] = False,
    curve: Annotated[bool, typer.Option(help="Also draw accuracy against ε.")] = True,
    at_least: Annotated[
        float | None, typer.Option(min=0, max=100, help="Exit code 3 if fewer per cent stand.")
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", "--batch-size", min=1, help="Examples attacked at once.")
    ] = 100,
    seed: Seed = 0,
    threads: Threads = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report; by default out/evaluate/<what>.")
    ] = None,
    root: Root = None,
    target: Target = None,
) -> None:
    """Accuracy under attack, example by example; killed and started again, it goes on.

    Example: taser evaluate --model out/run --epsilon 0.1

    Models that others trained: known:mnist-lenet5, known:mnist-lenet5-robust,
    known:cifar10-resnet18. Exit code 0: evaluated; 1: it could not be; 3: less than --at-least.
    """
    from taser.data.subset import subset
    from taser.evaluation import evaluate as run
    from taser.evaluation.answers import answers
    from taser.evaluation.curve import accuracy_curve
    from taser.report import evaluation as report

    dataset, network = subject(model, weights, data, option, root, threads, target)
    threat = threat_for(dataset, norm, epsilon, unbounded=unbounded)
    x, y = dataset.test.x, dataset.test.y
    out = out or Path("out/evaluate") / folder_name(model, weights, dataset.name, threat)
    if first:
        x, y = x[:examples], y[:examples]
    with progress_bar() as progress:
        result = run(
            network, x, y, threat=threat, attacks=attacks.replace(" ", "").split(","),
            n=examples, seed=seed, batch_size=batch, out=out, progress=progress,
        )  # fmt: skip
        x, y = x[result.index], y[result.index]
        drawn = None
        if curve:
            rows = subset(len(x), CURVE)  # the first might be all of one class
            drawn = accuracy_curve(
                network, x[rows], y[rows], threat=threat, seed=seed, batch_size=batch,
                progress=progress,
            )  # fmt: skip
    typer.echo(report.table(result).markdown())
    title = f"{model} on {dataset.name}, {threat}"
    assert result.attacked is not None
    said = answers(network, result.attacked, batch)
    page = report.write(result, title, out, x=x, answers=said, curve=drawn)
    show(page, report.summary(result))
    if at_least is not None and 100 * result.robust_accuracy < at_least:
        typer.echo(f"less than the {at_least:g} % that --at-least asks for", err=True)
        raise typer.Exit(VERDICT)


def folder_name(model: str, weights: Path | None, data: str, threat: "Threat") -> str:
    """A folder for each question: out/evaluate/net.py_build-plain-digits-linf-0.1."""
    parts = [
        model,
        *([weights.stem] if weights else []),
        data,
        threat.norm,
        f"{threat.epsilon:.4g}",
    ]
    return re.sub(r"[^\w.-]+", "_", "-".join(parts)).strip("._")
