"""The quality of a score model as a page, and as lines for the terminal."""

import math
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from taser.evaluation._score_quality import ScoreQuality

from ._page import Block, Page, Picture, Table, png, show_image

CURVES = (
    "Left: denoising error as a share of σ², for the denoiser and the best linear one; lower is "
    "better. Right: root mean square of the score at clean points."
)
SHEET = "Samples of the denoiser by Heun's method."


def write(quality: ScoreQuality, title: str, out: Path, *, samples: Tensor | None = None) -> Path:
    """results.json, table.md and report.html in `out`; the page's path.

    samples: images to show, (n, C, H, W).
    """
    pictures: list[Block] = [Picture(png(curves(quality)), CURVES)]
    if samples is not None:
        pictures.append(Picture(png(sheet(samples)), SHEET))
    page = Page(
        f"Score model: {title}", summary(quality),
        [("Noise levels", [table(quality)]), ("Pictures", pictures)],
        f"taser score check; n = {quality.n} held-out examples.",
    )  # fmt: skip
    return page.write_report(out, quality.numbers())


def summary(quality: ScoreQuality) -> list[str]:
    """The findings, a sentence each."""
    gains = [100 * level.gain for level in quality.levels]
    worst = max(quality.levels, key=lambda level: abs(level.stein.z))
    return [
        f"The denoiser removes {min(gains):.0f} to {max(gains):.0f} % of the best linear "
        "denoiser's error.",
        f"Stein identity at noised points: at worst {worst.stein.z:+.1f} standard errors from zero "
        f"(t = {worst.timestep}); a perfect score stays within about ±3.5 here.",
        f"Kernel Stein test at t = 50: p = {quality.ksd_p_value:.3f}; a small value says that the "
        "score is not that of the noised data.",
    ]


def table(quality: ScoreQuality) -> Table:
    """One row a noise level."""
    rows = [
        [
            f"{level.timestep}", f"{level.sigma:.3f}", f"{level.error:.3f}", f"{level.linear:.3f}",
            f"{100 * level.gain:.0f} %", f"{level.stein.z:+.1f}", f"{level.score_rms:.2f}",
            "–" if level.flip is None else f"{level.flip:.2f}",
        ]
        for level in quality.levels
    ]  # fmt: skip
    return Table(
        ["t", "σ", "error / σ²", "linear / σ²", "gain", "Stein, worst z", "score rms", "flip"],
        rows,
        "gain: share of the best linear denoiser's error removed. flip: ‖s(flip x) − flip s(x)‖ "
        "over ‖s‖.",
    )


def curves(quality: ScoreQuality) -> Figure:
    """Error and score size over noise levels."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    sigmas = [level.sigma for level in quality.levels]
    left.loglog(sigmas, [level.error for level in quality.levels], "o-", label="this denoiser")
    left.loglog(sigmas, [level.linear for level in quality.levels], "s--", label="best linear")
    left.set(xlabel="σ", ylabel="error / σ²")
    left.legend(frameon=False)
    right.loglog(sigmas, [level.score_rms for level in quality.levels], "o-")
    right.set(xlabel="σ", ylabel="score rms")
    return figure


def sheet(samples: Tensor) -> Figure:
    """Images, (n, C, H, W), in a square."""
    columns = math.ceil(math.sqrt(len(samples)))
    figure = Figure(figsize=(5, 5))
    grid = figure.subplots(columns, columns, squeeze=False).flatten()
    for axes in grid[len(samples) :]:
        axes.axis("off")
    for axes, image in zip(grid, samples, strict=False):
        show_image(axes, image)
    return figure
