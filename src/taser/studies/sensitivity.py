"""How a classifier of points in the plane reacts along a curve and across it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from taser.probes import Margin

from .curve import normal, split


@dataclass(frozen=True)
class Sensitivity:
    """Held-out measurements of one classifier.

    tangent, normal: root mean squares of ‖Π_T ∇m‖ and ‖Π_N ∇m‖, m the margin probe; accuracy: of
    clean points; accuracy_normal, accuracy_any: of the worst point within ε of each, on the line
    across the curve, and anywhere in the disc.
    """

    tangent: float
    normal: float
    accuracy: float
    accuracy_normal: float
    accuracy_any: float

    @property
    def ratio(self) -> float:
        """Normal over tangential sensitivity; no rescaling of the network changes it."""
        return self.normal / self.tangent


def measure(model: nn.Module, x: Tensor, y: Tensor, tangent: Tensor, *, eps: float) -> Sensitivity:
    """x: (B, 2); y: (B,); tangent: (B, 2), of the curve at the point nearest to x."""
    along, across = split(margin_gradient(model, x, y), tangent)
    clean = _right(model, x, y, [torch.zeros_like(x)])
    on_line = clean & _right(model, x, y, _line(normal(tangent), eps))
    in_disc = on_line & _right(model, x, y, _disc(x, eps))
    return Sensitivity(
        tangent=_rms(along),
        normal=_rms(across),
        accuracy=_share(clean),
        accuracy_normal=_share(on_line),
        accuracy_any=_share(in_disc),
    )


def margin_gradient(model: nn.Module, x: Tensor, y: Tensor, *, graph: bool = False) -> Tensor:
    """∇m at each x, (B, 2); with `graph`, differentiable in the parameters."""
    x = x.detach().requires_grad_()
    margin = Margin()(model(x), y)
    (gradient,) = torch.autograd.grad(margin.sum(), x, create_graph=graph)
    return gradient


def _line(direction: Tensor, eps: float, steps: int = 6) -> list[Tensor]:
    """Shifts up to ±ε along a direction of each point's own."""
    return [sign * eps * k / steps * direction for k in range(1, steps + 1) for sign in (-1, 1)]


def _disc(x: Tensor, eps: float, rings: int = 2, angles: int = 32) -> list[Tensor]:
    """Shifts on rings up to ε: in the plane a search of all angles leaves an attack no excuse."""
    turns = [2 * math.pi * k / angles for k in range(angles)]
    return [
        eps * ring / rings * x.new_tensor([math.cos(turn), math.sin(turn)])
        for ring in range(1, rings + 1)
        for turn in turns
    ]


@torch.no_grad()
def _right(model: nn.Module, x: Tensor, y: Tensor, shifts: Iterable[Tensor]) -> Tensor:
    """Whether a point is classified rightly after every shift: (B,)."""
    return torch.stack([model(x + shift).argmax(1) == y for shift in shifts]).all(0)


def _rms(parts: Tensor) -> float:
    return float(parts.square().sum(1).mean().sqrt())


def _share(flags: Tensor) -> float:
    return float(flags.float().mean())
