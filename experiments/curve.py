"""A curve in the plane, blurred by noise: data near a manifold in closed form."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from taser.scores import GaussianMixture


@dataclass(frozen=True, eq=False)
class Curve:
    """A sine arc c(u) = (u, a·sin πu), u ∈ [−1.5, 1.5], as n points close to one another.

    points: (n, 2); tangents: (n, 2), of length one; arc: (n,), the length along the curve from
    its first point, so that arc[-1] is the whole length.
    """

    points: Tensor
    tangents: Tensor
    arc: Tensor

    @classmethod
    def sine(cls, amplitude: float, n: int = 1201) -> "Curve":
        """The arc with a = `amplitude`."""
        u = torch.linspace(-1.5, 1.5, n, dtype=torch.float64)
        points = torch.stack([u, amplitude * torch.sin(math.pi * u)], 1)
        velocity = torch.stack(
            [torch.ones_like(u), amplitude * math.pi * torch.cos(math.pi * u)], 1
        )
        speed = velocity.norm(dim=1)
        arc = torch.cat([speed.new_zeros(1), torch.cumulative_trapezoid(speed, u)])
        return cls(points.float(), (velocity / speed[:, None]).float(), arc.float())

    def blurred(self, sigma: float) -> GaussianMixture:
        """The law of c(U) + σε, U uniform along the curve: one normal at each point.

        The points lie much closer together than σ, so along the curve the density is flat, and
        the score is −(distance off the curve)/σ² along the normal, except around the two ends.
        """
        step = self.arc.diff()
        if not sigma > 2 * float(step.max()):
            raise ValueError(
                f"sigma should be more than twice the distance of neighbouring points, "
                f"{float(step.max()):.2g}, or the curve falls into beads; got {sigma}"
            )
        weights = torch.cat([step[:1], step[1:] + step[:-1], step[-1:]])  # the length each holds
        return GaussianMixture(self.points, sigma**2, weights)

    def nearest(self, x: Tensor) -> Tensor:
        """The number of the curve point nearest to each x: (B, 2) → (B,)."""
        # The plain difference: cdist's matrix-product route loses digits when points are close.
        mode = "donot_use_mm_for_euclid_dist"
        parts = [torch.cdist(part, self.points, compute_mode=mode) for part in x.split(4096)]
        return torch.cat([part.argmin(1) for part in parts])

    def segment(self, x: Tensor, segments: int) -> Tensor:
        """Which of `segments` equal lengths of the curve x is nearest to: (B, 2) → (B,)."""
        share = self.arc[self.nearest(x)] / self.arc[-1]
        return (share * segments).long().clamp(max=segments - 1)

    def room(self, x: Tensor, segments: int) -> Tensor:
        """How far along the curve x is from the nearest end of its segment: (B, 2) → (B,).

        The curve's own two ends do not count: there is no other segment beyond them.
        """
        ends = self.arc[-1] * torch.arange(1, segments) / segments
        return (self.arc[self.nearest(x)][:, None] - ends).abs().amin(1)


def split(gradient: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
    """∇f = Π_T ∇f + Π_N ∇f, the part along the curve and the part across it; all (B, 2)."""
    along = (gradient * tangent).sum(1, keepdim=True) * tangent
    return along, gradient - along


def normal(tangent: Tensor) -> Tensor:
    """The tangent turned by a right angle: (B, 2) → (B, 2)."""
    return torch.stack([-tangent[:, 1], tangent[:, 0]], 1)
