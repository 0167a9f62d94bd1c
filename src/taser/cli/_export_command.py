"""`taser export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option


def export(
    run: Annotated[Path, Argument(help="The folder of a training run.")],
    out: Annotated[Path | None, Option(help="By default out/export/<run>.")] = None,
    evaluation: Annotated[
        list[Path] | None, Option(help="A folder of `taser evaluate` on the run; repeatable.")
    ] = None,
    which: Annotated[Literal["best", "last"], Option(help="Which weights of the run.")] = "best",
    push: Annotated[
        str | None, Option(help="Upload to the Hugging Face Hub as user/name, after a login.")
    ] = None,
) -> None:
    """Write a trained network for others: weights, architecture, a model card with its figures.

    Example: taser export out/run --evaluation out/evaluate/run

    `--model FOLDER`, or `--model hub:user/name` after --push, loads it elsewhere.
    """
    from taser.report import export as write

    folder = write(
        run, out or Path("out/export") / run.resolve().name, evaluations=evaluation or (),
        which=which, source=f"hub:{push}" if push else None,
    )  # fmt: skip
    typer.echo(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    if push:
        from huggingface_hub import HfApi

        hub = HfApi()
        hub.create_repo(push, exist_ok=True)
        hub.upload_folder(repo_id=push, folder_path=folder)
        typer.echo(f"uploaded as hub:{push}")
