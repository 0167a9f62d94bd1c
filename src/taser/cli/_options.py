"""What the commands share: options, a model and its data, JSON, errors in one line, progress."""

import json as encoding
import re
import sys
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from hashlib import sha256
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer
from typer import Option
from typer.core import TyperGroup

if TYPE_CHECKING:
    from torch import Tensor, nn

    from taser._files import Progress as ProgressCallback
    from taser.attacks import Threat
    from taser.data import Dataset

Out = Annotated[Path, Option(help="Folder for the report, its figures and its numbers.")]
NamedOut = Annotated[
    Path | None, Option("--out", help="Folder; by default out/<command>/<model>-<data>.")
]
Root = Annotated[Path | None, Option(help="The cache; by default $TASER_CACHE or ~/.cache/taser.")]
Seed = Annotated[int, Option(help="Of everything that is drawn at random.")]
Target = Annotated[str | None, Option(help="For a table: the column to predict.")]
Threads = Annotated[int | None, Option(min=1, help="CPU threads; by default all.")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON, and all else to stderr.")]
Model = Annotated[str, Option(help="A run's folder, hub:user/name, file.py:callable, or resnet18.")]
Weights = Annotated[Path | None, Option(help="Its *.safetensors or *.pt state; of a run the best.")]
Data = Annotated[str | None, Option(help="As for `taser data info`; else the run's or digits.")]
Options = Annotated[
    list[str] | None, Option("--option", help="Of the model, as width=16; repeatable.")
]
TrustCode = Annotated[
    bool, Option("--trust-code", help="Import and run the code that a run or recipe names.")
]
EPSILON_HELP = "The budget ε, as 8/255; of a table also age=5,sex=any; else the run's, or 8/255."
Epsilon = Annotated[str | None, Option(help=EPSILON_HELP)]
NormName = Literal["linf", "l2", "l1"]
Norm = Annotated[NormName | None, Option(help="The norm that ε bounds; else the run's, or linf.")]
Fixed = Annotated[str, Option(help="Of a table: columns that cannot change, as sex,race.")]
Integer = Annotated[str, Option(help="Of a table: columns that change by whole numbers.")]
Bounds = Annotated[str, Option(help="Of a table: as age=17:90,hours=0: in the columns' units.")]

Track = Annotated[str | None, Option(help="Also log to tensorboard, wandb, mlflow, trackio, ….")]

ERROR, VERDICT, INTERRUPTED = 1, 3, 130
"""Exit codes: bad input, a verdict against the model, Ctrl-C; beside 0 and typer's 2, usage."""


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
            message, code = "\ntaser: stopped; the same command goes on", INTERRUPTED
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            if ctx.params.get("debug"):
                raise
            message, code = f"taser: {error}", ERROR
        typer.secho(message, fg="red", err=True)
        raise typer.Exit(code)


STDOUT: ContextVar[TextIO | None] = ContextVar("STDOUT", default=None)
"""Under --json the real stdout, while `sys.stdout` is stderr; else None."""


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option --json to a command, which prints its result by `show` or `print_json`."""

    @wraps(command)
    def wrapper(*arguments: Any, json: bool = False, **options: Any) -> None:
        printed = json or options.get("format", "text") != "text"
        before = STDOUT.set(sys.stdout if printed else None)
        try:
            with redirect_stdout(sys.stderr) if printed else nullcontext():
                command(*arguments, **options)
        finally:
            STDOUT.reset(before)

    old = signature(command)
    option = Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    both = [*old.parameters.values(), option]
    wrapper.__signature__ = old.replace(parameters=both)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {**command.__annotations__, "json": Json}
    return wrapper


def json_wanted() -> bool:
    """Whether --json was given."""
    return STDOUT.get() is not None


def print_json(result: Any) -> None:
    """Print the result of a command with --json."""
    print(encoding.dumps(result, indent=1, ensure_ascii=False), file=STDOUT.get())


def show(page: Path, summary: list[str], record: str = "results.json") -> None:
    """The summary and where the report is; with --json also the record beside the report."""
    for line in summary:
        typer.echo(line)
    typer.echo(f"\nReport: {page}")
    if json_wanted():
        print((page.parent / record).read_text().rstrip("\n"), file=STDOUT.get())


def end_unless_main() -> None:
    """End a process that torchrun started beside the first, which prints and writes the report."""
    from taser._runtime import is_main_process

    if not is_main_process():
        raise typer.Exit


def default_folder(kind: str, *parts: str) -> Path:
    """out/<kind>/<parts>, of characters that every file system takes."""
    return Path("out", kind, re.sub(r"[^\w.-]+", "_", "-".join(parts)).strip("._"))


def model_folder(
    kind: str, model: str, weights: Path | None, dataset: "Dataset", threat: "Threat | None" = None
) -> Path:
    """The default folder of what is found about a model, so that no other model's is there."""
    own = [weights.stem] if weights else []
    at = [threat.norm, f"{threat.epsilon:.4g}"] if threat else []
    if threat and threat.has_structure:
        at.append(sha256(repr(threat).encode()).hexdigest()[:8])
    return default_folder(kind, model, *own, dataset.name, *at)


def track_numbers(track: str | None, folder: Path, numbers: dict[str, float]) -> None:
    """Log the figures of a report, as shares, to a tracker; TensorBoard's files are in `folder`."""
    if track is not None:
        from taser.training._run_folder import start_trackers

        for tracker in start_trackers(track, folder):
            tracker.log(numbers, 0)
            tracker.finish()


SECONDS_BETWEEN_LINES = 20.0


@contextmanager
def progress_bar() -> Iterator["ProgressCallback"]:
    """A bar for each stage, fed by progress(done, total, label); lines where stderr is a file.

    Of several processes only the first shows one.

    A new total begins a new stage. In a stage the bar only grows, and the time left is estimated.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    from taser._runtime import is_main_process

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeLeft())
    main = is_main_process()
    terminal = sys.stderr.isatty() and main
    bar = Progress(*columns, transient=True, console=Console(file=sys.stderr), disable=not terminal,
                   speed_estimate_period=600)  # fmt: skip
    task, printed = bar.add_task("starting", total=None), -SECONDS_BETWEEN_LINES

    def update(done: int, total: int, label: str) -> None:
        nonlocal printed
        if bar.tasks[task].total != total:
            bar.reset(task, total=total)
        most = max(done, bar.tasks[task].completed)
        bar.update(task, completed=most, description=label)
        if main and not terminal and time.monotonic() - printed > SECONDS_BETWEEN_LINES:
            printed = time.monotonic()
            left = bar.tasks[task].time_remaining
            words = f", about {max(1, round(left / 60))} min left" if left else ""
            typer.echo(f"{most / max(total, 1):4.0%}  {label}{words}", err=True)

    with bar:
        yield update


def load_model_and_data(
    model: str, weights: Path | None, data: str | None, options: list[str] | None,
    root: Path | None, threads: int | None, target: str | None = None, *, trust_code: bool = False,
    regression: bool = False,
) -> "tuple[Dataset, nn.Module]":  # fmt: skip
    """The data set, and the classifier on the default device, or a regression if that is taken."""
    from taser._runtime import default_device
    from taser.data import load
    from taser.models import load_model
    from taser.training import load_trained
    from taser.training._run_folder import run_folder

    use_threads(threads)
    folder = run_folder(model)
    run = folder if folder.is_dir() else None
    if run is None and ":" not in model and len(Path(model).parts) > 1:
        raise ValueError(f"there is no folder {model}: `taser train --out {model}` would make it")
    if run and options:
        raise ValueError(f"{model} takes no options: its architecture is known")
    if run:
        dataset = _data_for_run(run, data, root, target)
    else:
        dataset = load(data or "digits", root=root, target=target)
    if dataset.classes is None and not regression:
        raise ValueError(
            f"{dataset.name} is a regression: take `taser evaluate`, this is for classes"
        )
    if run:
        network = load_trained(run, weights or "best", trust_code=trust_code)
        return dataset, network.to(default_device())
    shape, own = dataset.input_shape, dict(map(_option, options or []))
    classes = len(dataset.classes) if dataset.classes else None
    network = load_model(model, weights, classes=classes, shape=shape, **own)
    return dataset, network.to(default_device())


def _data_for_run(run: Path, data: str | None, root: Path | None, target: str | None) -> "Dataset":
    """The run's own data in its own splits, or other data with the run's preprocessing."""
    from taser.data import Preprocessing, load
    from taser.training import DataConfig
    from taser.training._build import build_data
    from taser.training._run_folder import read_data_config

    record = run / "data.json"
    config = read_data_config(run) if (run / "config.yaml").is_file() else DataConfig()
    own = replace(config, examples=None, target=target or config.target)
    if data is None or data == config.name:
        return build_data(own, root)
    options: dict[str, Any] = {}  # read as the run's own folder or table was
    if Path(data).is_dir():
        options = {"size": config.size}
    elif Path(data).exists() and config.target:
        options = {"ignore": config.ignore, "task": config.task}
    other = load(data, root=root, target=target, standardise=False, **options)
    if record.is_file():
        return Preprocessing.from_json(record.read_text()).apply(other)
    return Preprocessing.of(build_data(own, root)).apply(other)  # a run of an older version


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"an option should be name=value, such as width=16; got {text!r}")
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def read_threat(
    dataset: "Dataset", norm: Any, epsilon: str | None, *, fixed: str = "", integer: str = "",
    bounds: str = "", unbounded: bool = False, model: str = "",
) -> "Threat":  # fmt: skip
    """The threat of these options, or without ε the one that the run `model` was trained with."""
    from taser.attacks import Threat
    from taser.training._build import build_threat
    from taser.training._run_folder import read_threat_config, run_folder

    folder = run_folder(model) if model and epsilon is None else None
    if folder is not None and (folder / "config.yaml").is_file():
        if norm or fixed or integer or bounds or unbounded:
            raise ValueError("without --epsilon the threat is the run's: give --epsilon, too")
        threat = build_threat(read_threat_config(folder), dataset)
        typer.echo(f"Threat: {threat}, with which the run was trained; --epsilon sets another.\n")
        return threat
    given, norm, epsilon = epsilon is not None, norm or "linf", epsilon or "8/255"
    if not (dataset.categorical or fixed or integer or bounds or "=" in epsilon):
        box = (None, None) if unbounded else dataset.test.box
        threat = Threat(norm, epsilon, *box)  # type: ignore[arg-type]
    else:
        threat = Threat.for_table(
            dataset, _pairs(epsilon) if "=" in epsilon else epsilon, norm=norm,
            fixed=_listed(fixed), integer=_listed(integer),
            bounds={name: _range(name, text) for name, text in _pairs(bounds).items()} or None,
        )  # fmt: skip
    if not given:
        typer.echo(f"Threat: {threat}, the default; --epsilon sets another.\n")
    return threat


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.rpartition("=")[::2] for part in _listed(text)]
    if wrong := [value for name, value in pairs if not name]:
        raise ValueError(f"columns and values are written as age=5,sex=any; got {wrong[0]!r}")
    return {name.strip(): value.strip() for name, value in pairs}


def _range(name: str, text: str) -> tuple[str | None, str | None]:
    low, colon, high = text.partition(":")
    if not colon:
        raise ValueError(
            f"bounds are written as {name}=low:high, either may be empty; got {text!r}"
        )
    return low or None, high or None


def draw_examples(dataset: "Dataset", n: int) -> "tuple[Tensor, Tensor]":
    """n examples of the test part, the same for every model: x, (n, *), and y, (n,)."""
    from taser.data._dataset import subset

    rows = subset(len(dataset.test), n)
    return dataset.test.rows(rows), dataset.test.y[rows]
