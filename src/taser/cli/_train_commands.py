"""`taser train` and `taser finetune`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from ._options import (
    Threads,
    TrustCode,
    default_folder,
    json_wanted,
    print_json,
    progress_bar,
    with_json,
)

Recipe = Annotated[str, Option(help="A YAML file, or a name from `taser recipes`: digits/pgd.")]
Folder = Annotated[
    Path | None,
    Option(help="A run in it is resumed; by default out/train/<recipe> or out/finetune/<model>."),
]
Overrides = Annotated[
    list[str] | None, Argument(help="Any key of the recipe: loop.epochs=3 regulariser.weight=0.1")
]
DryRun = Annotated[bool, Option("--dry-run", help="Print configuration, time and memory only.")]
Taser = Annotated[bool | None, Option("--taser/--no-taser", help="Switch TASER on or off.")]


def train(
    recipe: Recipe = "digits/standard", out: Folder = None, overrides: Overrides = None,
    taser: Taser = None, threads: Threads = None, dry_run: DryRun = False,
    trust_code: TrustCode = False,
) -> None:  # fmt: skip
    """Train by a recipe; the same command resumes an interrupted run.

    Example: taser train --recipe digits/pgd --taser --out out/pgd-taser loop.epochs=5

    On several processes: torchrun --nproc-per-node 2 -m taser train …, or accelerate launch.
    """
    own = default_folder("train", Path(recipe).with_suffix("").as_posix(), *["taser"] * bool(taser))
    _train(recipe, out or own, taser, threads, dry_run, trust_code, overrides)


def finetune(
    model: Annotated[str, Option(help="A run's folder; resnet18, …; or file.py:callable.")],
    weights: Annotated[
        Path | None, Option(help="Its *.safetensors or *.pt state; of a run the best.")
    ] = None,
    recipe: Annotated[str | None, Option(help="By default finetune/taser, or the run's.")] = None,
    out: Folder = None, overrides: Overrides = None, taser: Taser = None, threads: Threads = None,
    dry_run: DryRun = False, trust_code: TrustCode = False,
) -> None:  # fmt: skip
    """Fine-tune a finished classifier, with a KL term to its initial outputs.

    Example: taser finetune --model out/run --out out/tuned

    A run's folder is tuned on its own data for a third of its epochs, with TASER, at a third of its
    rate. `file.py:callable` runs the code in that file; weights never run code.
    """
    if run := Path(model) if Path(model).is_dir() else None:
        weights = weights or run / "best.safetensors"
    if weights is None or not weights.expanduser().exists():
        raise FileNotFoundError(f"there are no weights at {weights}: give --weights")
    settings = [f"model.weights={weights}"]
    if run:
        if recipe is not None:
            raise ValueError(f"{model} is tuned by its own recipe, config.yaml: leave out --recipe")
        recipe = str(run / "config.yaml")
        settings += _gently(recipe, trust_code)
    else:
        settings.append(f"model.name={model}")
        if ":" in model:  # what the recipe says of its own network is not of yours
            settings += ["model.width=null", "model.activation=null"]
    out, recipe = out or default_folder("finetune", model), recipe or "finetune/taser"
    _train(recipe, out, taser, threads, dry_run, trust_code, overrides, settings)


def _gently(recipe: str, trust_code: bool) -> list[str]:
    """What makes a run's recipe one of fine-tuning."""
    from taser.training import read_recipe

    before = read_recipe(recipe, trust_code=trust_code)
    rate, epochs = before.optimiser.rate / 3, max(1, before.loop.epochs // 3)
    return [f"optimiser.rate={rate:.3g}", f"loop.epochs={epochs}", "teacher.weight=1",
            "regulariser.name=taser"]  # fmt: skip


@with_json
def recipes() -> None:
    """The recipes that ship with the package, and what each is for.

    Example: taser recipes
    """
    from taser.training._recipes import shipped_recipes

    listed = shipped_recipes()
    if json_wanted():
        print_json(listed)
        return
    wide, above = max(map(len, listed)), ""
    for name, summary in listed.items():
        typer.echo(f"{name:{wide}}  {summary if summary != above else ''}".rstrip())
        above = summary


def _train(
    recipe: str, out: Path, taser: bool | None, threads: int | None, dry_run: bool,
    trust_code: bool, overrides: list[str] | None, settings: Sequence[str] = (),
) -> None:  # fmt: skip
    from taser._runtime import exit_process, is_main_process
    from taser.data import Preprocessing
    from taser.training import read_recipe, to_yaml, train

    chosen = [] if taser is None else [f"regulariser.name={'taser' if taser else 'none'}"]
    chosen += [] if threads is None else [f"loop.threads={threads}"]
    changes = [*settings, *chosen, *(overrides or [])]
    config = read_recipe(recipe, changes, trust_code=trust_code)
    if dry_run:
        from taser.training._build import set_up
        from taser.training._estimate_cost import estimate

        typer.echo(f"{to_yaml(config)}\n{estimate(set_up(config))}")
        return
    with progress_bar() as progress:
        result = train(config, out, report=progress)
    data = Preprocessing.from_json((out / "data.json").read_text())
    classifier, own = data.classes is not None, config.objective
    clean, robust = f"{result.clean:.3f}", f"{result.robust:.3f}"
    if not classifier:  # errors are negated
        unit = -data.square_unit
        clean, robust = f"{unit * result.clean:.4g}", f"{unit * result.robust:.4g}"
    lines = [
        f"best of {result.steps} steps at {result.best_step}: "
        f"{'accuracy' if classifier else 'mean squared error'} {clean} clean, "
        f"{robust} under a short PGD ({own.threat or f'{own.norm} ε={own.epsilon:.7g}'}; at most "
        f"{config.validation.examples} validation examples; a short attack overestimates).",
        f"For a figure to believe: taser evaluate --model {out} --examples 200"
        + " --trust-code" * (":" in config.model.name),
        f"weights: {out}/best.safetensors and last.safetensors; log: {out}/log.jsonl",
    ]
    if is_main_process():
        typer.echo("\n".join(lines))
    exit_process()
