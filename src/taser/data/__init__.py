"""Data sets as tensors in [0, 1], with fixed splits, and batches out of them."""

from ._batches import Augmentation, Batches, CropAndFlip
from ._cache import DamagedCache, Manifest, cache_root, cached
from ._dataset import Batch, Dataset, Split, Standardisation
from ._fetch import fetch
from ._load import load
from ._preprocessing import Meaning
from ._registry import KNOWN, Embedded, Fetchable, Known, find
from ._sources import FetchError, Progress

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
