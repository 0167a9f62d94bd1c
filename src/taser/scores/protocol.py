"""What every score is, whether closed form, learnt or borrowed from a diffusion model."""

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Score(Protocol):
    """s(x) ≈ ∇log p(x): takes (B, *), returns the same shape, detached from any graph.

    Any callable of that form is a score. The coordinates are those of `x`: a score written for
    other coordinates goes through :class:`taser.scores.Affine` first.
    """

    def __call__(self, x: Tensor, /) -> Tensor: ...
