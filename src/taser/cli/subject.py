"""What `evaluate`, `audit` and `shift` share: a classifier, its data, and how far it is pushed."""

from ast import literal_eval
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .common import use_threads

if TYPE_CHECKING:
    from torch import Tensor, nn

    from taser.attacks import Threat
    from taser.data import Dataset
    from taser.data.meaning import Meaning
    from taser.training.config import DataConfig

Model = Annotated[
    str, typer.Option(help="A run's folder, known:NAME, file.py:callable, or resnet18, ….")
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="Its weights: *.safetensors, or a *.pt state. Of a run, the best by default."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="A data set, as for `taser data info`; its test part. By default that of the run or "
        "the known model, else digits."
    ),
]
Target = Annotated[str | None, typer.Option(help="For a table: the column to predict.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="Of the model, such as width=16; repeatable.")
]
Epsilon = Annotated[str, typer.Option(help="How far an attack may go, such as 8/255.")]
Norm = Annotated[Literal["linf", "l2"], typer.Option(help="In which norm.")]


def subject(
    model: str,
    weights: Path | None,
    data: str | None,
    options: list[str] | None,
    root: Path | None,
    threads: int | None,
    target: str | None = None,
) -> "tuple[Dataset, nn.Module]":
    """The data set and the classifier to ask about it."""
    from taser.data import load
    from taser.device import accelerator
    from taser.evaluation.known_models import known_model
    from taser.models import load_model
    from taser.training import load_trained

    use_threads(threads)
    known, folder = model.startswith("known:"), Path(model).is_dir()
    if not folder and ":" not in model and len(Path(model).parts) > 1:
        raise ValueError(f"there is no folder {model}: `taser train --out {model}` would make it")
    if known and weights is not None:
        raise ValueError(f"{model} brings its own weights")
    if (known or folder) and options:
        raise ValueError(f"{model} takes no options: its architecture is known")
    own = _recipe_of(model)
    if own is not None and data == own.name:
        data = None  # in the run's own splits
    if data and folder:
        raw = load(data, root=root, target=target, standardise=False, **_as_read(data, own))
        chosen = _meaning(Path(model), root, target).give(raw)
    else:
        chosen = load(data, root=root, target=target) if data else _own_data(model, root, target)
    if chosen.classes is None:
        raise ValueError(f"{chosen.name} is a regression; this is for classifiers")
    if known:
        network = known_model(model, root)
    elif folder:
        network = load_trained(Path(model), weights or "best")
    else:
        network = load_model(
            model, weights, classes=len(chosen.classes), shape=chosen.input_shape,
            **dict(map(_option, options or [])),
        )  # fmt: skip
    return chosen, network.to(accelerator())


def _own_data(model: str, root: Path | None, target: str | None) -> "Dataset":
    """What the model was trained on, in the same splits; digits if nothing says."""
    from taser.data import load
    from taser.evaluation.known_models import KNOWN_MODELS
    from taser.training.assemble import load_data

    if own := _recipe_of(model):
        return load_data(replace(own, target=target or own.target), root)
    names = {f"known:{known.name}": known.data for known in KNOWN_MODELS}
    return load(names.get(model, "digits"), root=root, target=target)


def _recipe_of(model: str) -> "DataConfig | None":
    """What a run's recipe says of its data; None for a model that is no run."""
    from taser.training import read_recipe

    recipe = Path(model) / "config.yaml"
    return read_recipe(recipe).data if recipe.is_file() else None


def _as_read(data: str, own: "DataConfig | None") -> dict[str, Any]:
    """How a run read its own folder or table, for another of the kind."""
    if own is None or not Path(data).exists():
        return {}
    if Path(data).is_dir():
        return {"size": own.size}
    return {"ignore": own.ignore, "task": own.task} if own.target else {}


def _meaning(run: Path, root: Path | None, target: str | None) -> "Meaning":
    """What the model's numbers mean, as the run wrote down, or by the data that it names."""
    from taser.data.meaning import Meaning

    kept = run / "data.json"
    if kept.is_file():
        return Meaning.from_json(kept.read_text())
    return Meaning.of(_own_data(str(run), root, target))  # a run of an older version


def examples_of(dataset: "Dataset", n: int) -> "tuple[Tensor, Tensor]":
    """The same examples of the test part for every model: x, (n, *), and y, (n,)."""
    from taser.data.subset import subset

    rows = subset(len(dataset.test), n)
    return dataset.test.rows(rows), dataset.test.y[rows]


def threat_for(
    dataset: "Dataset", norm: Literal["linf", "l2"], epsilon: str, *, unbounded: bool = False
) -> "Threat":
    """ε in a norm; images stay images, in [0, 1], unless they need not."""
    from taser.attacks import Threat

    box = (None, None) if unbounded else dataset.test.box
    return Threat(norm, epsilon, *box)  # type: ignore[arg-type]


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"an option should be name=value, such as width=16; got {text!r}")
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
