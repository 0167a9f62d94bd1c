"""What storing pictures does to them."""

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def pixelate(x: Tensor, share: float, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """P x Pᵀ: every pixel becomes the mean of those in its cell, `share` as many cells a side."""
    rows, columns = (_cell_means(side, share, x) for side in x.shape[-2:])
    return rows @ x @ columns.T


def _cell_means(side: int, share: float, x: Tensor) -> Tensor:
    """P, (side, side): P_jk = 1/size of the cell where the centres of j and k lie, or 0."""
    centres = torch.arange(side, device=x.device) + 0.5
    cell = (centres * max(1, int(share * side)) / side).floor()
    together = (cell[:, None] == cell).to(x.dtype)
    return together / together.sum(1, keepdim=True)


def jpeg(x: Tensor, quality: int, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """Written as JPEG of this quality, and read again; channels apart unless three."""
    if x.shape[1] == 3:
        return torch.stack([_through_jpeg(picture, quality) for picture in x]).to(x)
    planes = [_through_jpeg(plane[None], quality) for plane in x.flatten(0, 1)]
    return torch.stack(planes).view_as(x).to(x)


def _through_jpeg(picture: Tensor, quality: int) -> Tensor:
    """One picture (C, H, W), with C one or three."""
    pixels = picture.mul(255).round().byte().movedim(0, -1).numpy(force=True)
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(
        buffer, "JPEG", quality=quality
    )
    read = np.asarray(Image.open(buffer), dtype=np.float32) / 255
    return torch.from_numpy(read).reshape(pixels.shape).movedim(-1, 0)
