"""`taser study`: experiments, each with a report."""

from pathlib import Path
from typing import Annotated

import typer

from .common import Out, progress_bar, show

app = typer.Typer(help="Experiments, each with a report.", no_args_is_help=True)
Seeds = Annotated[int, typer.Option(min=1, help="Networks for every setting.")]
HASTE = "A quick run: too short to compare with the figures of README and docs."
Quick = Annotated[bool, typer.Option("--quick", help="A small run to try it; not to quote.")]


@app.command()
def toy1d(out: Out = Path("out/toy1d"), seeds: Seeds = 5, quick: Quick = False) -> None:
    """Regression of sin x: the paper's Table 1, with its figure.

    Example: taser study toy1d --seeds 3 --out out/toy1d
    """
    from taser.report import toy1d as report
    from taser.studies.toy1d import Config, run

    config = Config.quick() if quick else Config(seeds=tuple(range(seeds)))
    with progress_bar() as progress:
        result = run(config, progress=progress)
    show(report.write(result, out), [HASTE] * quick + report.summary(result))


@app.command()
def manifold2d(out: Out = Path("out/manifold2d"), seeds: Seeds = 3, quick: Quick = False) -> None:
    """A classifier on a curve in the plane: the paper's Figure 1, measured.

    Example: taser study manifold2d --out out/manifold2d
    """
    from taser.report import manifold2d as report
    from taser.studies.manifold2d import Config, run

    config = Config.quick() if quick else Config(seeds=tuple(range(seeds)))
    with progress_bar() as progress:
        result = run(config, progress=progress)
    show(report.write(result, out), [HASTE] * quick + report.summary(result))
