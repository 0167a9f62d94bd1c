"""Data sets as tensors in [0, 1], with fixed splits, and batches out of them."""

from taser._runtime import wrap_public_api

from ._batches import Augmentation, Batch, Batches, CropAndFlip
from ._cache import DamagedCache, fetch
from ._dataset import Dataset, Preprocessing, Split, Standardisation
from ._load import load
from ._published import DATASETS, FetchError

__all__ = [
    "DATASETS", "Augmentation", "Batch", "Batches", "CropAndFlip", "DamagedCache", "Dataset",
    "FetchError", "Preprocessing", "Split", "Standardisation", "fetch", "load",
]  # fmt: skip

wrap_public_api(globals(), __all__)  # checks argument types, names them in errors
