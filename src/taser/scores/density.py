"""Densities known in closed form: their score, their log-density and draws from them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def check_floating(name: str, given: Tensor) -> None:
    """Raise for whole numbers, from which no density can be made."""
    if not given.is_floating_point():
        raise ValueError(f"{name} should be floating point; got {given.dtype}: {name}.float()")


class Density(nn.Module, ABC):
    """A density p on inputs of shape `event_shape`; calling it gives the score ∇log p.

    Subclasses work on rows of length d = prod(event_shape); this class folds images in and out,
    checks shapes, and keeps the result detached.
    """

    def __init__(self, event_shape: Sequence[int]) -> None:
        super().__init__()
        self.event_shape = tuple(event_shape)

    @property
    def dim(self) -> int:
        """d, the number of coordinates of one input."""
        return torch.Size(self.event_shape).numel()

    def forward(self, x: Tensor) -> Tensor:
        """∇log p at x: (B, *event) → (B, *event), detached."""
        # Half precision would lose the digits in which neighbours differ.
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            return self._score(self._rows(x)).to(x.dtype).view(x.shape)

    def log_prob(self, x: Tensor) -> Tensor:
        """log p at x: (B, *event) → (B,), differentiable."""
        return self._log_prob(self._rows(x))

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n independent draws, (n, *event)."""
        with torch.no_grad():
            return self._sample(n, generator).view(n, *self.event_shape)

    def _rows(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.event_shape:
            raise ValueError(
                f"{type(self).__name__} is a density of inputs of shape {self.event_shape}, "
                f"so x should be (B, {', '.join(map(str, self.event_shape))}); "
                f"got {tuple(x.shape)}"
            )
        check_floating("x", x)
        return x.flatten(1).to(next(self.buffers()).dtype)

    def extra_repr(self) -> str:
        return f"event_shape={self.event_shape}"

    @abstractmethod
    def _score(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _log_prob(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor: ...


def covariance_matrices(cov: Tensor | float, dim: int, like: Tensor) -> Tensor:
    """A variance, a (d, d) matrix or a stack of them (m, d, d), as matrices; checked."""
    matrices = torch.as_tensor(cov, dtype=like.dtype, device=like.device)
    if matrices.ndim == 0:
        matrices = matrices * torch.eye(dim, dtype=like.dtype, device=like.device)
    if tuple(matrices.shape[-2:]) != (dim, dim) or matrices.ndim > 3:
        raise ValueError(
            f"cov should be a variance, a ({dim}, {dim}) matrix or a stack of them, "
            f"to match a mean of {dim} coordinates; got shape {tuple(matrices.shape)}"
        )
    if not torch.allclose(matrices, matrices.mT, atol=1e-6 * float(matrices.abs().max())):
        raise ValueError("cov should be symmetric; it is not")
    if torch.linalg.cholesky_ex(matrices).info.any():
        raise ValueError("cov should be positive definite; its Cholesky factorisation fails")
    return matrices


def standard_normal(
    shape: Sequence[int], like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Draws of N(0, I) in the dtype and on the device of `like`."""
    return torch.randn(tuple(shape), dtype=like.dtype, device=like.device, generator=generator)
