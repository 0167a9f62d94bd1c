"""Which part of TASER does what: one thing changed at a time."""

from dataclasses import replace
from pathlib import Path

from taser.scores import Denoiser, FitConfig, fit
from taser.training import read_recipe
from taser.training.assemble import build_data

from .queue import Progress
from .table_config import TableConfig

DEFAULT = "TASER as it is"
"""The variant that the others of an ablation are compared with."""
HALF_TRAINED = "half-trained"
"""As regulariser.score in an ablation's YAML: a denoiser that saw a twentieth of the steps."""
STEPS = 50


def with_half_trained_score(
    config: TableConfig, out: Path, progress: Progress | None = None
) -> TableConfig:
    """The table with a half-trained denoiser, fitted once and kept in `out`, where it names one."""
    asked, path = f"regulariser.score={HALF_TRAINED}", out / "half-trained.safetensors"
    if not any(asked in overrides for overrides in config.variants.values()):
        return config
    if not path.exists():
        x = build_data(read_recipe(f"{config.recipe}/{config.methods[0]}").data).train.x
        fit(Denoiser.for_data(x), x, FitConfig(steps=STEPS), progress=progress).save(path)
    variants = {
        name: [f"regulariser.score={path.resolve()}" if o == asked else o for o in overrides]
        for name, overrides in config.variants.items()
    }
    return replace(config, variants=variants)
