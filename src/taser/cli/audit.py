"""`taser audit`: whether to believe a claim of robustness."""

from ast import literal_eval
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .common import VERDICT, Out, Root, Seed, Threads, progress_bar, show
from .machine import with_json

if TYPE_CHECKING:
    from torch import Tensor, nn

    from taser.data import Dataset

Model = Annotated[str, typer.Option(help="resnet18, …, known:NAME, or file.py:callable.")]
Weights = Annotated[Path | None, typer.Option(help="Its weights: *.safetensors, or a *.pt state.")]
Data = Annotated[str, typer.Option(help="A data set, as for `taser data info`; its test part.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="Of the model, such as width=16; repeatable.")
]
Epsilon = Annotated[str, typer.Option(help="How far an attack may go, such as 8/255.")]
Norm = Annotated[Literal["linf", "l2"], typer.Option(help="In which norm.")]
ENOUGH = 10_000  # training examples for a surrogate


@with_json
def audit(
    model: Model,
    data: Data = "digits",
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
) -> None:
    """Ask of a model what the literature asks of a defence; the exit code says what came of it.

    Example: taser audit --model cnn --weights best.safetensors --data digits --epsilon 0.1

    Exit code 0: trust, no check failed; 3: do not trust; 1: the audit could not be made. Killed
    and started again, it goes on.
    """
    from taser.attacks import Threat
    from taser.data.subset import subset
    from taser.evaluation.audit import audit as run
    from taser.evaluation.audit import undefended
    from taser.report import audit as report

    dataset, network = subject(model, weights, data, option, root, threads)
    low, high = (0.0, 1.0) if dataset.train.is_images else (None, None)
    threat = Threat(norm, epsilon, low, high)  # type: ignore[arg-type]
    x, y = chosen(dataset, examples)
    with progress_bar() as progress:
        other = None
        if surrogate:
            train, rows = dataset.train, subset(len(dataset.train), ENOUGH)
            classes = len(dataset.classes or ())
            other = undefended(train.rows(rows), train.y[rows], classes, progress=progress)
        result = run(
            network, x, y, threat=threat, surrogate=other, steps=steps, restarts=restarts,
            queries=queries, seed=seed, out=out / "batches", progress=progress,
        )  # fmt: skip
    typer.echo(report.table(result).markdown())
    page = report.write(result, f"{model} on {dataset.name}, {threat}", out)
    show(page, report.summary(result))
    if result.verdict != "trust":
        raise typer.Exit(VERDICT)


def subject(
    model: str,
    weights: Path | None,
    data: str,
    options: list[str] | None,
    root: Path | None,
    threads: int | None,
) -> "tuple[Dataset, nn.Module]":
    """The data set and the classifier to ask about it."""
    import torch

    from taser.data import load
    from taser.evaluation.known_models import known_model
    from taser.models import load_model
    from taser.training import load_trained

    if threads is not None:
        torch.set_num_threads(threads)
    dataset = load(Path(data) if Path(data).suffix else data, root=root)
    if dataset.classes is None:
        raise ValueError(f"{dataset.name} is a regression; this is for classifiers")
    if model.startswith("known:"):
        if weights is not None or options:
            raise ValueError(f"{model} brings its own weights, and takes no options")
        return dataset, known_model(model, root)
    if Path(model).is_dir():
        if weights is not None or options:
            raise ValueError(f"{model} is the folder of a run, which has its own weights")
        return dataset, load_trained(Path(model))
    network = load_model(
        model, weights, classes=len(dataset.classes), shape=dataset.input_shape,
        **dict(map(_option, options or [])),
    )  # fmt: skip
    return dataset, network


def chosen(dataset: "Dataset", examples: int) -> "tuple[Tensor, Tensor]":
    """The same examples of the test part for every model: x, (n, *), and y, (n,)."""
    from taser.data.subset import subset

    rows = subset(len(dataset.test), examples)
    return dataset.test.rows(rows), dataset.test.y[rows]


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"an option should be name=value, such as width=16; got {text!r}")
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
