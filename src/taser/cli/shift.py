"""`taser shift`: a model among corruptions, and inputs that are not of its data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import Out, Root, Seed, Threads, progress_bar, show
from .machine import with_json
from .subject import Data, Epsilon, Model, Norm, Options, Weights, examples_of, subject, threat_for

if TYPE_CHECKING:
    from torch import nn

    from taser.data import Dataset

BATCH = 256
REFERENCE = 500  # training examples that a residual's mean is taken over


@with_json
def shift(
    model: Model,
    data: Data = None,
    weights: Weights = None,
    option: Options = None,
    other: Annotated[
        list[str] | None, typer.Option(help="Another data set, to tell from this; repeatable.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(help="As for `taser score check`; by default the shipped one or a Gaussian."),
    ] = None,
    epsilon: Epsilon = "8/255",
    norm: Norm = "linf",
    examples: Annotated[
        int, typer.Option("--examples", "-n", min=2, help="Of the test part.")
    ] = 1000,
    severity: Annotated[int, typer.Option(min=1, max=5, help="Of corruptions to be told.")] = 3,
    seed: Seed = 0,
    threads: Threads = None,
    out: Out = Path("out/shift"),
    root: Root = None,
) -> None:
    """Accuracy under corruptions, and whether the Stein residual tells foreign inputs.

    Example: taser shift --model out/run --other mnist

    Foreign are: corrupted inputs, inputs attacked by PGD, and those of other data sets. They are
    told from one half of the test examples, and made of the other half.
    """
    import torch

    from taser.attacks import PGD
    from taser.data import load
    from taser.data.subset import subset
    from taser.device import accelerator
    from taser.evaluation.out_of_distribution import out_of_distribution, shaped_like
    from taser.evaluation.shift import mixed
    from taser.evaluation.shift import shift as run
    from taser.report import shift as report

    dataset, network = subject(model, weights, data, option, root, threads)
    device = accelerator()
    x, y = (part.to(device) for part in examples_of(dataset, examples))
    threat = threat_for(dataset, norm, epsilon)
    attack = PGD(threat, steps=20, step_size=threat.epsilon / 8)
    generator = torch.Generator(device).manual_seed(seed)
    with progress_bar() as progress:
        result = run(network, x, y, seed=seed, progress=progress)
        # Every other row, because files and folders may come class by class.
        inside, rest, labels = x[::2], x[1::2], y[1::2]
        outside = {
            f"corrupted (severity {severity})": mixed(rest, severity, seed=seed),
            f"attacked ({threat})": torch.cat([
                attack(network, *rows, generator=generator)
                for rows in zip(rest.split(BATCH), labels.split(BATCH), strict=True)
            ]),
        }  # fmt: skip
        for name in other or []:
            foreign = examples_of(load(name, root=root), len(rest))[0]
            outside[name] = shaped_like(foreign, dataset.input_shape)
        detection = out_of_distribution(
            network, _score(dataset, score).to(device), inside, outside,
            reference=dataset.train.rows(subset(len(dataset.train), REFERENCE)), seed=seed,
            progress=progress,
        )  # fmt: skip
    typer.echo(report.table(result).markdown())
    typer.echo(report.signs_table(detection).markdown())
    page = report.write(result, detection, f"{model} on {dataset.name}", out, example=x[0].cpu())
    show(page, report.summary(result, detection))


def _score(dataset: "Dataset", name: str | None) -> "nn.Module":
    """The score named, or shipped for this data, or that of a Gaussian fitted to it."""
    from taser.data.subset import subset
    from taser.scores import Gaussian, named, pretrained
    from taser.scores.pretrained import SHIPPED

    if name is not None:
        return named(name).at()
    if dataset.name in SHIPPED:
        return pretrained(dataset.name).at()
    return Gaussian.fit(dataset.train.rows(subset(len(dataset.train), 10_000)))
