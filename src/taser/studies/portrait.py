"""A classifier looked at over a stretch of the plane, for a picture."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .curve import Curve, split
from .sensitivity import margin_gradient


@dataclass(frozen=True, eq=False)
class Scene:
    """The stretch of plane around a curve, and some of the data on it.

    across: (columns,); up: (rows,); nearest: (rows · columns,), the number of the curve point
    nearest to each grid point; distance: (rows, columns), from there; x: (n, 2); y: (n,).
    """

    curve: Curve
    across: Tensor
    up: Tensor
    nearest: Tensor
    distance: Tensor
    x: Tensor
    y: Tensor

    @classmethod
    def around(cls, curve: Curve, x: Tensor, y: Tensor, *, border: float, step: float) -> "Scene":
        """A grid with spacing `step` that reaches `border` beyond the curve on every side."""
        low, high = curve.points.amin(0) - border, curve.points.amax(0) + border
        across, up = (
            torch.arange(float(a), float(b), step) for a, b in zip(low, high, strict=True)
        )
        grid = _grid(across, up)
        nearest = curve.nearest(grid)
        distance = (grid - curve.points[nearest]).norm(dim=1).view(len(up), len(across))
        return cls(curve, across, up, nearest, distance, x, y)


@dataclass(frozen=True, eq=False)
class Portrait:
    """Maps over a scene, each (rows, columns).

    tangent, normal: ‖Π_T ∇m‖ and ‖Π_N ∇m‖; margin: z_1 − z_0, zero on the decision boundary.
    """

    tangent: Tensor
    normal: Tensor
    margin: Tensor

    @classmethod
    def of(cls, model: nn.Module, scene: Scene) -> "Portrait":
        """The maps of a classifier of two classes."""
        grid = _grid(scene.across, scene.up)
        # With two classes m = ±(z_1 − z_0), so one label will do: the sizes are the other's too.
        gradient = margin_gradient(model, grid, torch.zeros(len(grid), dtype=torch.long))
        along, off = split(gradient, scene.curve.tangents[scene.nearest])
        with torch.no_grad():
            z = model(grid)
        shape = scene.distance.shape
        return cls(
            along.norm(dim=1).view(shape),
            off.norm(dim=1).view(shape),
            (z[:, 1] - z[:, 0]).view(shape),
        )


def _grid(across: Tensor, up: Tensor) -> Tensor:
    """Every point of the grid, row by row: (rows · columns, 2)."""
    vertical, horizontal = torch.meshgrid(up, across, indexing="ij")
    return torch.stack([horizontal, vertical], -1).view(-1, 2)
