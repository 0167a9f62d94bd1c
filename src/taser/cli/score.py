"""`taser score`: from a data set to a score."""

from pathlib import Path
from typing import Annotated

import typer

from .common import Root, progress_bar

app = typer.Typer(help="Score models: fit them.", no_args_is_help=True)


@app.command()
def fit(
    out: Annotated[Path, typer.Option(help="The file to write, *.safetensors.")],
    data: Annotated[str, typer.Option(help="A data set, as for `taser data info`.")] = "digits",
    steps: Annotated[int, typer.Option(min=1)] = 1000,
    minutes: Annotated[float | None, typer.Option(help="Stop after this long at most.")] = None,
    batch: Annotated[int, typer.Option(min=1)] = 64,
    width: Annotated[int, typer.Option(min=1, help="Channels at full resolution.")] = 16,
    levels: Annotated[int, typer.Option(min=1, help="Resolutions, each half the last.")] = 2,
    blocks: Annotated[int, typer.Option(min=1, help="Residual blocks at each resolution.")] = 1,
    patch: Annotated[int, typer.Option(min=1, help="Fold patches into channels first.")] = 1,
    flip: Annotated[bool, typer.Option(help="Mirror half of the images.")] = False,
    half: Annotated[bool, typer.Option(help="Store half-precision weights.")] = False,
    seed: int = 0,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    root: Root = None,
) -> None:
    """Train a denoiser on the training part of a data set; started again, it goes on.

    Example: taser score fit --data digits --out digits.safetensors
    """
    import torch

    from taser.data import load
    from taser.scores import Denoiser, FitConfig
    from taser.scores import fit as train

    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    x = load(data, root=root).train.x
    options = {"width": width, "blocks": blocks}
    if x.ndim == 4:
        options |= {"multipliers": [1] + [2] * (levels - 1), "patch": patch}  # type: ignore[dict-item]
    denoiser = Denoiser.for_data(x, **options)
    config = FitConfig(steps=steps, minutes=minutes, batch=batch, flip=flip, seed=seed)
    with progress_bar() as progress:
        fitted = train(
            denoiser, x, config, checkpoint=out.with_suffix(".partial"), progress=progress
        )
    fitted.save(out, half=half)
    typer.echo(f"{fitted.extra_repr()}\nwritten to {out}")
