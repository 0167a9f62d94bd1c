"""The multivariate normal."""

import math

import torch
from torch import Tensor

from .density import Density, check_floating, covariance_matrices, standard_normal


class Gaussian(Density):
    """N(mean, cov), whose score is s(x) = −cov⁻¹ (x − mean).

    mean: (*event); cov: a variance or (d, d) over the flattened event.

    >>> import torch
    >>> Gaussian(torch.zeros(2), 4.0)(torch.tensor([[8.0, -4.0]]))
    tensor([[-2.,  1.]])
    """

    mean: Tensor
    factor: Tensor

    def __init__(self, mean: Tensor, cov: Tensor | float = 1.0) -> None:
        super().__init__(mean.shape)
        check_floating("mean", mean)
        matrix = covariance_matrices(cov, self.dim, mean)
        if matrix.ndim != 2:
            raise ValueError(f"Gaussian takes one covariance; got a stack of {len(matrix)}")
        self.register_buffer("mean", mean.detach().flatten())
        self.register_buffer("factor", torch.linalg.cholesky(matrix))

    @classmethod
    def fit(cls, x: Tensor, shrinkage: float = 0.05) -> "Gaussian":
        """Mean and covariance of x, (n, *event), shrunk towards their isotropic part.

        cov = (1 − a)·S + a·(tr S / d)·I with a = `shrinkage`: pixels that never change would
        otherwise give a covariance that cannot be inverted.
        """
        check_floating("x", x)
        if not 0.0 <= shrinkage <= 1.0:
            raise ValueError(f"shrinkage should lie in [0, 1]; got {shrinkage}")
        if len(x) < 2 or not bool(x.isfinite().all()):
            raise ValueError(f"a Gaussian is fitted to two or more finite inputs; got {len(x)}")
        rows = x.flatten(1)
        sample = torch.cov(rows.T).reshape(rows.shape[1], rows.shape[1])
        isotropic = sample.diagonal().mean() * torch.eye(
            len(sample), dtype=x.dtype, device=x.device
        )
        return cls(x.mean(0), torch.lerp(sample, isotropic, shrinkage))

    def _score(self, x: Tensor) -> Tensor:
        return -torch.cholesky_solve((x - self.mean).T, self.factor).T

    def _log_prob(self, x: Tensor) -> Tensor:
        white = torch.linalg.solve_triangular(self.factor, (x - self.mean).T, upper=False)
        log_volume = self.factor.diagonal().log().sum() + 0.5 * self.dim * math.log(2 * math.pi)
        return -0.5 * white.square().sum(0) - log_volume

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        return self.mean + standard_normal((n, self.dim), self.mean, generator) @ self.factor.T
