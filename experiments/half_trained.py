"""A score of digits with a twentieth of the usual training, for the ablations' YAML."""

from taser.data import load
from taser.scores import Denoiser, FitConfig, fit


def score() -> Denoiser:
    """The same at every call; a few seconds."""
    x = load("digits").train.x
    return fit(Denoiser.for_data(x), x, FitConfig(steps=50))
