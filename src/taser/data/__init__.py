"""Data sets as tensors in [0, 1], with fixed splits, and batches out of them."""

from .batch import Batch
from .batches import Augmentation, Batches
from .cache import DamagedCache, Manifest, cache_root, cached
from .crop_and_flip import CropAndFlip
from .dataset import Dataset
from .fetch import fetch
from .known import Embedded, Fetchable, Known
from .load import load
from .meaning import Meaning
from .names import KNOWN, find
from .sources import FetchError, Progress
from .split import Split
from .standardisation import Standardisation

__all__ = [
    "KNOWN",
    "Augmentation",
    "Batch",
    "Batches",
    "CropAndFlip",
    "DamagedCache",
    "Dataset",
    "Embedded",
    "FetchError",
    "Fetchable",
    "Known",
    "Manifest",
    "Meaning",
    "Progress",
    "Split",
    "Standardisation",
    "cache_root",
    "cached",
    "fetch",
    "find",
    "load",
]
