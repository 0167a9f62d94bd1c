"""`taser score`: from a data set to a score."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from . import _options as cli

if TYPE_CHECKING:
    from torch import Tensor

    from taser.data import Dataset

WIDEST = 4096  # numbers in an input; for more, the best linear denoiser takes too long
KINDS = """A file of `taser score fit`, a shipped score (digits), ffdnet (colour photographs),
diffusers:NAME, or a function of yours that returns a score, file.py:function: runs it."""
Model = Annotated[str, Argument(help=KINDS.replace("\n", " "))]
app = typer.Typer(help="Score models: fit and check them.", no_args_is_help=True)


@app.command()
def fit(
    out: Annotated[Path, Option(help="The file to write, *.safetensors.")],
    data: Annotated[str, Option(help="A data set, as for `taser data info`.")] = "digits",
    steps: Annotated[int, Option(min=1, help="Of training.")] = 1000,
    minutes: Annotated[float | None, Option(help="At most so long, over all resumptions.")] = None,
    batch: Annotated[int, Option(min=1, help="Examples in a step.")] = 64,
    width: Annotated[int, Option(min=1, help="Channels at full resolution.")] = 16,
    levels: Annotated[int, Option(min=1, help="Resolutions, each half the last.")] = 2,
    blocks: Annotated[int, Option(min=1, help="Residual blocks at each resolution.")] = 1,
    patch: Annotated[int, Option(min=1, help="Fold patches into channels first.")] = 1,
    flip: Annotated[bool, Option(help="Mirror half of the images.")] = False,
    half: Annotated[bool, Option(help="Store half-precision weights.")] = False,
    seed: cli.Seed = 0, threads: cli.Threads = None,
    root: cli.Root = None, target: cli.Target = None,
) -> None:  # fmt: skip
    """Train a denoiser on the training part of a data set; run again, it resumes.

    Example: taser score fit --data digits --out digits.safetensors

    A resumed fit may be given other --steps and --minutes.
    """
    import torch
    from filelock import FileLock, Timeout

    from taser._checkpoint import remove_checkpoints
    from taser._files import duration
    from taser._runtime import default_device
    from taser.data import load
    from taser.data._dataset import subset
    from taser.evaluation._score_quality import score_quality
    from taser.scores import Denoiser, FitConfig
    from taser.scores import fit as train
    from taser.scores._fit import estimate_seconds

    if out.suffix != ".safetensors":
        raise ValueError(f"--out should be a file that ends in .safetensors; got {out}")
    if out.exists():
        raise FileExistsError(f"{out} exists: choose another --out, or remove it")
    cli.use_threads(threads)
    torch.manual_seed(seed)
    dataset = load(data, root=root, target=target)
    x, device = dataset.train.x, default_device()
    images = {"multipliers": [1] + [2] * (levels - 1), "patch": patch} if x.ndim == 4 else {}
    denoiser = Denoiser.for_data(x, width=width, blocks=blocks, **images).to(device)
    config = FitConfig(steps=steps, minutes=minutes, batch=batch, flip=flip, seed=seed)
    partial = out.with_suffix(".partial")
    if partial.is_file():
        raise FileExistsError(f"{partial} should be a folder of checkpoints, not a file: remove it")
    about = duration(estimate_seconds(denoiser, x, config))
    typer.echo(f"This takes about {about} on this machine ({steps:,} steps at most)", err=True)
    try:
        with FileLock(partial / ".lock", timeout=0), cli.progress_bar() as progress:
            fitted = train(denoiser, x, config, checkpoint=partial, progress=progress)
            fitted.save(out, half=half)
    except Timeout:
        raise RuntimeError(f"another process is fitting {out}: wait, or stop it") from None
    remove_checkpoints(partial)
    typer.echo(f"{fitted}, written to {out}")
    held_out = _held_out(dataset, 1000)
    if len(held_out) > 1 and x[0].numel() <= WIDEST:
        some = x[subset(len(x), 10_000)].to(device)
        quality = score_quality(fitted, some, held_out, timesteps=(50,))
        typer.echo(
            f"On held-out data it removes {100 * quality.levels[0].gain:.0f} % of the best linear "
            "denoiser's error at t = 50; the shipped ones remove 18 % (CIFAR-10) to 63 % "
            "(Fashion-MNIST). Below 10 %, give more --steps or --width, or use a Gaussian score."
        )


def _held_out(dataset: "Dataset", n: int) -> "Tensor":
    """At most n validation examples, or test examples if there are none, on the default device."""
    from taser._runtime import default_device
    from taser.data._dataset import subset

    part = dataset.validation if len(dataset.validation) > 1 else dataset.test
    return part.rows(subset(len(part), n)).to(default_device())


@app.command()
@cli.with_json
def check(
    model: Model,
    data: Annotated[str, Option(help="The data set it was fitted to.")] = "digits",
    out: Annotated[Path | None, Option(help="Folder; by default out/score/<what>.")] = None,
    examples: Annotated[int, Option("--examples", "-n", min=2, help="Held-out examples.")] = 1000,
    root: cli.Root = None, target: cli.Target = None,
) -> None:  # fmt: skip
    """Measure a score model on held-out data: error, Stein identity, kernel test, samples.

    Example: taser score check digits.safetensors --data digits
    """
    from taser._runtime import default_device
    from taser.data import load
    from taser.evaluation._score_quality import score_quality
    from taser.report import _score_report as report
    from taser.scores import Denoiser, named
    from taser.scores._denoiser import sample

    denoiser = named(model).to(default_device())
    dataset = load(data, root=root, target=target)
    held_out = _held_out(dataset, examples)
    train = dataset.train.x.to(default_device())
    samples = None
    with cli.progress_bar() as progress:
        quality = score_quality(denoiser, train, held_out, progress=progress)
        # Another's denoiser may not be trained at the noise levels that sampling passes.
        if isinstance(denoiser, Denoiser) and held_out.ndim == 4:
            samples = sample(denoiser, 16).cpu()
    typer.echo(report.table(quality).markdown())
    name = f"{Path(model).name} on {data}"
    out = out or cli.default_folder("score", model, data)
    page = report.write(quality, name, out, samples=samples)
    cli.show(page, report.summary(quality))
