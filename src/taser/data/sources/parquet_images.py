"""Image data sets as Hugging Face stores them: Parquet files of encoded images and labels."""

import io
from typing import Any

import numpy as np
from PIL import Image

from ..parquet import pyarrow_parquet
from ..parts import Examples, joined
from .errors import FetchError
from .layout import Layout


def decode_parquet(content: bytes) -> Examples:
    """Images from the column "img" or "image", labels from "label"."""
    parquet = pyarrow_parquet()
    try:
        table: dict[str, list[Any]] = parquet.read_table(io.BytesIO(content)).to_pydict()
        images = [_pixels(image["bytes"]) for image in table.get("img") or table["image"]]
        return Examples(np.stack(images), np.array(table["label"], dtype=np.uint8))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise FetchError(
            'wanted a Parquet file with encoded images of one size in "img" or "image" and class '
            f'numbers in "label"; it is damaged or another: {error!r}'
        ) from error


def _pixels(encoded: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(encoded), formats=["PNG"]) as image:
        pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _decode(*groups: list[bytes]) -> tuple[Examples, Examples]:
    train, test = (joined([decode_parquet(content) for content in group]) for group in groups)
    return train, test


PARQUET_IMAGES = Layout(
    "the folder of Parquet files from Hugging Face", ("train*.parquet", "test*.parquet"), _decode
)
