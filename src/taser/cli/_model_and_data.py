"""What `evaluate`, `audit` and `shift` share: a classifier, its data and the threat model."""

from ast import literal_eval
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ._options import use_threads

if TYPE_CHECKING:
    from torch import Tensor, nn

    from taser.attacks import Threat
    from taser.data import Dataset

Model = Annotated[str, typer.Option(help="A run's folder, file.py:callable, or resnet18, ….")]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="Its weights: *.safetensors, or a *.pt state. Of a run, the best by default."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="A data set, as for `taser data info`; its test part. By default that of the run, "
        "else digits."
    ),
]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="Of the model, such as width=16; repeatable.")
]
Epsilon = Annotated[str, typer.Option(help="The attack's budget ε, such as 8/255.")]
Norm = Annotated[Literal["linf", "l2"], typer.Option(help="The norm that ε bounds.")]


def load_model_and_data(
    model: str,
    weights: Path | None,
    data: str | None,
    options: list[str] | None,
    root: Path | None,
    threads: int | None,
    target: str | None = None,
) -> "tuple[Dataset, nn.Module]":
    """The data set, and the classifier on the default device."""
    from taser._tensors import default_device
    from taser.data import load
    from taser.models import load_model
    from taser.training import load_trained

    use_threads(threads)
    is_run = Path(model).is_dir()
    if not is_run and ":" not in model and len(Path(model).parts) > 1:
        raise ValueError(f"there is no folder {model}: `taser train --out {model}` would make it")
    if is_run and options:
        raise ValueError(f"{model} takes no options: its architecture is known")
    if is_run:
        dataset = _data_for_run(Path(model), data, root, target)
    else:
        dataset = load(data or "digits", root=root, target=target)
    if dataset.classes is None:
        raise ValueError(f"{dataset.name} is a regression; this is for classifiers")
    if is_run:
        network = load_trained(Path(model), weights or "best")
    else:
        network = load_model(
            model, weights, classes=len(dataset.classes), shape=dataset.input_shape,
            **dict(map(_option, options or [])),
        )  # fmt: skip
    return dataset, network.to(default_device())


def _data_for_run(run: Path, data: str | None, root: Path | None, target: str | None) -> "Dataset":
    """The run's own data in its own splits, or other data with the run's preprocessing."""
    from taser.data import Preprocessing, load
    from taser.training._build import load_data
    from taser.training._config import DataConfig
    from taser.training._run_folder import read_data_config

    record = run / "data.json"
    config = read_data_config(run) if (run / "config.yaml").is_file() else DataConfig()

    def own_data() -> "Dataset":
        return load_data(replace(config, target=target or config.target), root)

    if data is None or data == config.name:
        return own_data()
    options: dict[str, Any] = {}  # read as the run's own folder or table was
    if Path(data).is_dir():
        options = {"size": config.size}
    elif Path(data).exists() and config.target:
        options = {"ignore": config.ignore, "task": config.task}
    other = load(data, root=root, target=target, standardise=False, **options)
    if record.is_file():
        return Preprocessing.from_json(record.read_text()).apply(other)
    return Preprocessing.of(own_data()).apply(other)  # a run of an older version


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"an option should be name=value, such as width=16; got {text!r}")
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def draw_examples(dataset: "Dataset", n: int) -> "tuple[Tensor, Tensor]":
    """n examples of the test part, the same for every model: x, (n, *), and y, (n,)."""
    from taser.data._dataset import subset

    rows = subset(len(dataset.test), n)
    return dataset.test.rows(rows), dataset.test.y[rows]


def threat_for(
    dataset: "Dataset", norm: Literal["linf", "l2"], epsilon: str, *, unbounded: bool = False
) -> "Threat":
    """The threat model, with the box of the data, which for images is [0, 1]."""
    from taser.attacks import Threat

    box = (None, None) if unbounded else dataset.test.box
    return Threat(norm, epsilon, *box)  # type: ignore[arg-type]
