"""Random crops and flips that move an image and its score field together."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

Border = Literal["zeros", "reflect"]


@dataclass(frozen=True)
class CropAndFlip:
    """A crop of random place out of the padded image, and a mirror image half of the time.

    Both move pixels and change no value, so the score of the moved image is, where the image was
    there before, the moved score: each field goes the way of its image. In the border that padding
    brings in the score is not known, and is zero.

    padding: pixels on each side; flip: whether to mirror; border: what the image is padded with.

    >>> import torch
    >>> x = torch.rand(2, 3, 32, 32)
    >>> moved, field = CropAndFlip(4)(x, -x, generator=torch.Generator().manual_seed(0))
    >>> torch.equal(field, -moved)
    True
    """

    padding: int = 4
    flip: bool = True
    border: Border = "zeros"

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding should not be negative; got {self.padding}")
        if self.border not in get_args(Border):
            raise ValueError(f"border should be one of {get_args(Border)}; got {self.border!r}")

    def __call__(
        self, x: Tensor, s: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """x, and s if given, both (B, C, H, W), moved alike. The draws are made on the CPU."""
        if x.ndim != 4:
            raise ValueError(f"x should be images, (B, C, H, W); got {tuple(x.shape)}")
        if s is not None and (len(s) != len(x) or s.shape[2:] != x.shape[2:]):
            raise ValueError(
                f"the field s should be as many and as large as x, {tuple(x.shape)}; "
                f"got {tuple(s.shape)}"
            )
        down, right = torch.randint(2 * self.padding + 1, (2, len(x)), generator=generator)
        mirrored = torch.rand(len(x), generator=generator) < (0.5 if self.flip else 0.0)
        rows = down[:, None] + torch.arange(x.shape[2])
        columns = right[:, None] + torch.where(
            mirrored[:, None], torch.arange(x.shape[3]).flip(0), torch.arange(x.shape[3])
        )
        moved = self._take(x, rows, columns, self.border)
        return moved, None if s is None else self._take(s, rows, columns, "zeros")

    def _take(self, x: Tensor, rows: Tensor, columns: Tensor, border: Border) -> Tensor:
        """The pixels of the padded x at rows (B, H) and columns (B, W)."""
        mode = "constant" if border == "zeros" else "reflect"
        padded = F.pad(x, [self.padding] * 4, mode=mode)
        width = padded.shape[3]
        places = (rows[:, :, None] * width + columns[:, None, :]).flatten(1).to(x.device)
        places = places[:, None].expand(-1, x.shape[1], -1)
        return padded.flatten(2).gather(2, places).view(x.shape)
