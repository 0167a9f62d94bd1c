"""Examples as tensors, with a hash of their content."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .digest import add_array, add_shape

TOLERANCE = 1e-6  # of [0, 1]: what rounding does to pixels that were scaled in float32
ROWS = 4096  # hashed at a time


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Inputs x with their labels or targets y; treat both as read-only.

    stored: images (N, C, H, W), float32 in [0, 1] or bytes that stand for k/255; or vectors (N, d),
    float32. y: class numbers (N,), int64, or targets (N,), float32.

    Bytes take a quarter of the memory: `x` is made of all of them when first asked for, `rows`
    only of the rows that a batch needs.

    >>> import torch
    >>> split = Split(torch.rand(5, 1, 8, 8), torch.arange(5))
    >>> split.x.shape, len(split)
    (torch.Size([5, 1, 8, 8]), 5)
    """

    stored: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        bytes_of_images = self.stored.ndim == 4 and self.stored.dtype == torch.uint8
        floats = self.stored.ndim in (2, 4) and self.stored.dtype == torch.float32
        if not (bytes_of_images or floats):
            raise ValueError(
                "x should be float32 images (N, C, H, W) or vectors (N, d), or images as uint8; "
                f"got {tuple(self.stored.shape)} of {self.stored.dtype}"
            )
        if self.y.shape != self.stored.shape[:1] or self.y.dtype not in (
            torch.int64,
            torch.float32,
        ):
            raise ValueError(
                f"y should be ({len(self)},), one int64 label or float32 target for each row of "
                f"x; got {tuple(self.y.shape)} of {self.y.dtype}"
            )
        if self.stored.numel() == 0:
            raise ValueError(
                f"a split should hold at least one example; got {tuple(self.stored.shape)}"
            )
        self._check_values()

    def __repr__(self) -> str:
        return f"Split({len(self):,} inputs of shape {self.shape})"

    def _check_values(self) -> None:
        if not bool(torch.isfinite(self.y).all()):
            raise ValueError("y should be finite; it has entries that are NaN or infinite")
        if self.stored.dtype == torch.uint8:
            return
        low, high = (float(end) for end in torch.aminmax(self.stored))  # NaN, if there is one
        if not (abs(low) < float("inf") and abs(high) < float("inf")):
            raise ValueError("x should be finite; it has entries that are NaN or infinite")
        if self.is_images and (low < -TOLERANCE or high > 1 + TOLERANCE):
            raise ValueError(
                f"images should have values in [0, 1]; got values from {low:g} to {high:g}"
                + (" (divide bytes by 255)" if high > 2 else "")
            )

    def __len__(self) -> int:
        return len(self.stored)

    @cached_property
    def x(self) -> Tensor:
        """All inputs: float32 images (N, C, H, W) in [0, 1], or vectors (N, d)."""
        return _floats(self.stored)

    def rows(self, index: Tensor | slice) -> Tensor:
        """The inputs x[index], and no others."""
        return _floats(self.stored[index])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (C, H, W) or (d,)."""
        return tuple(self.stored.shape[1:])

    @property
    def is_images(self) -> bool:
        """Whether inputs are (C, H, W)."""
        return self.stored.ndim == 4

    @property
    def box(self) -> tuple[float, float] | tuple[None, None]:
        """What inputs may be: pixels are in [0, 1], the features of a table are free."""
        return (0.0, 1.0) if self.is_images else (None, None)

    @cached_property
    def hash(self) -> str:
        """sha256 of the numbers x and y, however they are stored."""
        digest = hashlib.sha256()
        add_shape(digest, "f4", self.stored.shape)
        for start in range(0, len(self), ROWS):
            add_array(digest, self.rows(slice(start, start + ROWS)).numpy(force=True))
        y = self.y.numpy(force=True)
        add_shape(digest, f"{y.dtype.kind}{y.dtype.itemsize}", y.shape)
        add_array(digest, y)
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> "Split":
        """The same examples on `device`."""
        return Split(self.stored.to(device), self.y.to(device))


def _floats(x: Tensor) -> Tensor:
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x
