"""A change of coordinates for scores."""

import torch
from torch import Tensor, nn

from .protocol import Score


class Affine(nn.Module):
    """A score given in u = scale·x + shift, turned into a score in x.

    The chain rule of ∇log p:  s_x(x) = scale · s_u(scale·x + shift). The residual follows it,
    r_x = scale² · r_u for a scalar scale, so a weight λ has a meaning only in named coordinates.

    scale, shift: numbers, or tensors that broadcast against one input (per channel: (C, 1, 1)).

    A score of a diffusion model in [-1, 1], for pixels in [0, 1]: Affine(score, scale=2, shift=-1).
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, score: Score, scale: Tensor | float = 1.0, shift: Tensor | float = 0.0
    ) -> None:
        super().__init__()
        scale, shift = (1.0 * torch.as_tensor(number) for number in (scale, shift))
        if bool((scale == 0).any()) or not bool(torch.isfinite(scale).all()):
            raise ValueError(f"scale should be finite and nowhere zero; got {scale.tolist()}")
        self.score = score
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def extra_repr(self) -> str:
        return f"scale={self.scale.tolist()}, shift={self.shift.tolist()}"

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """s_x at x: (B, *) → (B, *), detached."""
        scale, shift = self.scale.to(x.dtype), self.shift.to(x.dtype)
        return (scale * self.score(scale * x + shift)).detach()
