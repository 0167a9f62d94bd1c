"""What `evaluate`, `audit` and `shift` share: a classifier, its data, and how far it is pushed."""

import json as encoding
import sys
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer
from typer.core import TyperGroup

from taser._progress import Progress as Told

STDOUT: ContextVar[TextIO | None] = ContextVar("STDOUT", default=None)
RECORDS = ("results.json", "evaluation.json", "rows.json")  # as taser.report names them
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and all else to stderr.")
]


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option --json more; its result goes through `show` or `answer`."""

    @wraps(command)
    def longer(*arguments: Any, json: bool = False, **options: Any) -> None:
        with _set_aside() if json else nullcontext():
            command(*arguments, **options)

    known = signature(command)
    extra = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    longer.__signature__ = known.replace(  # type: ignore[attr-defined]
        parameters=[*known.parameters.values(), extra]
    )
    longer.__annotations__ = {**command.__annotations__, "json": Json}
    return longer


@contextmanager
def _set_aside() -> Iterator[None]:
    """Keep stdout for the answer; what anybody else prints goes to stderr."""
    before = STDOUT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        STDOUT.reset(before)


def wanted() -> bool:
    """Whether --json was given."""
    return STDOUT.get() is not None


def answer(result: Any) -> None:
    """Print the result: text that is JSON already, or what `json` knows."""
    whole = isinstance(result, str)
    text = result if whole else encoding.dumps(result, indent=1, ensure_ascii=False)
    print(text.rstrip("\n"), file=STDOUT.get())


def beside(page: Path) -> str:
    """The numbers that were written together with a report's page."""
    names = {page.with_suffix(".json").name, *RECORDS}
    there = [path for name in names if (path := page.parent / name).exists()]
    return max(there, key=lambda path: path.stat().st_mtime_ns).read_text()


ERROR, VERDICT, INTERRUPTED = 1, 3, 130
"""Exit codes: bad input, a verdict against the model, Ctrl-C; beside 0 and typer's 2, usage."""

SECONDS_BETWEEN_LINES = 20.0

Out = Annotated[Path, typer.Option(help="Folder for the report, its figures and its numbers.")]
Root = Annotated[
    Path | None, typer.Option(help="The cache; by default $TASER_CACHE or ~/.cache/taser.")
]
Seed = Annotated[int, typer.Option(help="Of everything that is drawn at random.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; by default all.")]


Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time.")]


def use_threads(threads: int | None) -> None:
    """That many CPU threads, if a number is given."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


class PlainErrors(TyperGroup):
    """Commands whose errors are one line and exit code 1; `taser --debug …` shows a traceback."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # the last: `taser … | head`
            raise
        except KeyboardInterrupt:
            typer.secho("\ntaser: stopped", fg="red", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            if ctx.params.get("debug"):
                raise
            typer.secho(f"taser: {error}", fg="red", err=True)
            raise typer.Exit(ERROR) from None


@contextmanager
def progress_bar() -> Iterator[Told]:
    """A bar in the terminal, on stderr, fed by progress(done, total, label)."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeLeft())
    with Progress(*columns, transient=True, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("starting", total=None)

        def progress(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield progress


def _lines() -> Told:
    """A line now and then, for a log."""
    last = time.monotonic()

    def progress(done: int, total: int, label: str) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            typer.echo(f"{done / max(total, 1):4.0%}  {label}", err=True)

    return progress


def show(page: Path, summary: list[str]) -> None:
    """The findings in plain language, and where the rest is; with --json the numbers as well."""
    for line in summary:
        typer.echo(line)
    typer.echo(f"\nReport: {page}")
    if wanted():
        answer(beside(page))


if TYPE_CHECKING:
    from torch import Tensor, nn

    from taser.attacks import Threat
    from taser.data import Dataset, Preprocessing
    from taser.training._config import DataConfig

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
    from taser._tensors import default_device
    from taser.data import load
    from taser.evaluation._known_models import known_model
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
        chosen = _preprocessing(Path(model), root, target).apply(raw)
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
    return chosen, network.to(default_device())


def _own_data(model: str, root: Path | None, target: str | None) -> "Dataset":
    """What the model was trained on, in the same splits; digits if nothing says."""
    from taser.data import load
    from taser.evaluation._known_models import KNOWN_MODELS
    from taser.training._build import load_data

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


def _preprocessing(run: Path, root: Path | None, target: str | None) -> "Preprocessing":
    """That of the run's data, from its data.json or, in an older run, from the data themselves."""
    from taser.data import Preprocessing

    kept = run / "data.json"
    if kept.is_file():
        return Preprocessing.from_json(kept.read_text())
    return Preprocessing.of(_own_data(str(run), root, target))


def examples_of(dataset: "Dataset", n: int) -> "tuple[Tensor, Tensor]":
    """The same examples of the test part for every model: x, (n, *), and y, (n,)."""
    from taser.data._splitting import subset

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
