"""Which part of TASER does what: one thing changed at a time."""

from pathlib import Path

from taser.compare._comparison_config import ASK_HALF, HALF_TRAINED, TableConfig
from taser.compare._jobs import Progress
from taser.scores import Denoiser, FitConfig, fit
from taser.training import read_recipe
from taser.training._build import build_data

DEFAULT = "TASER as it is"
"""The variant that the others of an ablation are compared with."""
STEPS = 50


def fit_half_trained(config: TableConfig, out: Path, progress: Progress | None = None) -> None:
    """A denoiser that saw a twentieth of the steps, into `out`, if a variant asks for it."""
    path = out / HALF_TRAINED
    if path.exists() or not any(ASK_HALF in asked for asked in config.variants.values()):
        return
    x = build_data(read_recipe(f"{config.recipe}/{config.methods[0]}").data).train.x
    fit(Denoiser.for_data(x), x, FitConfig(steps=STEPS), progress=progress).save(path)
