"""Scores of the training examples from a cache."""

from pathlib import Path

import numpy as np

from taser.data import Dataset
from taser.objectives import Regulariser, Taser
from taser.scores import DenoisingScore
from taser.scores.cache import StaleCache, model_hash, read_cache

from .assemble import build_augmentation
from .config import Config


def cached_scores(
    config: Config, dataset: Dataset, regulariser: Regulariser | None
) -> np.ndarray | None:
    """What `regulariser.cache` holds, (N, *), if it is named; refused unless it is of this run."""
    if config.regulariser.cache is None:
        return None
    clean = isinstance(regulariser, Taser) and regulariser.at == "clean"
    score = getattr(regulariser, "score", None)
    if not clean or not isinstance(score, DenoisingScore):
        raise ValueError(
            "regulariser.cache holds a denoiser's score at the examples themselves: it takes "
            "regulariser.name=taser, at=clean and replaced=none"
        )
    if build_augmentation(config.data, dataset) is not None:
        raise ValueError(
            "regulariser.cache holds the score at the examples as they are, which crops and flips "
            "change: set data.augment=none, or do without the cache"
        )
    try:
        return read_cache(
            Path(config.regulariser.cache).expanduser(), data=dataset.train.hash,
            model=model_hash(score), sigma=score.sigma,
        )  # fmt: skip
    except StaleCache as error:
        split = "`taser score cache --validation` as data.validation; data.seed=0, every example"
        raise StaleCache(f"{error} ({split})") from None
