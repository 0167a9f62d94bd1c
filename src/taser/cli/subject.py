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
    chosen = load(data, root=root, target=target) if data else _own_data(model, root, target)
    if data and folder:
        chosen = _as_trained(chosen, _classes_of_run(model, root, target))
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
    from taser.training import read_recipe

    recipe = Path(model) / "config.yaml"
    if recipe.is_file():
        own = read_recipe(recipe).data
        target = target or own.target
        return load(own.name, root=root, validation=own.validation, seed=own.seed, target=target)
    names = {f"known:{known.name}": known.data for known in KNOWN_MODELS}
    return load(names.get(model, "digits"), root=root, target=target)


def _classes_of_run(model: str, root: Path | None, target: str | None) -> tuple[str, ...] | None:
    try:
        return _own_data(model, root, target).classes
    except (ValueError, OSError):  # the data of the run are gone
        return None


def _as_trained(chosen: "Dataset", names: tuple[str, ...] | None) -> "Dataset":
    """The data with the numbers of the classes that the model was trained on, if known.

    Classes are the same if their names are, or if they are called by these numbers.
    """
    import torch

    if chosen.classes is None or names is None or chosen.classes == names:
        return chosen
    numbered = {str(number): number for number in range(len(names))}
    known = {name: number for number, name in enumerate(names)}
    known = known if set(chosen.classes) <= known.keys() else numbered
    if strange := [name for name in chosen.classes if name not in known]:
        raise ValueError(
            f"{chosen.name} has a class {strange[0]!r}, and the model was trained on others: "
            f"{', '.join(names)}"
        )
    number = torch.tensor([known[name] for name in chosen.classes])
    parts = {part: replace(split, y=number[split.y]) for part, split in chosen.splits.items()}
    return replace(chosen, classes=names, **parts)  # type: ignore[arg-type]


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

    low, high = (None, None) if unbounded or not dataset.test.is_images else (0.0, 1.0)
    return Threat(norm, epsilon, low, high)  # type: ignore[arg-type]


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"an option should be name=value, such as width=16; got {text!r}")
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
