"""A finite mixture of normals."""

import math

import torch
from torch import Tensor

from .density import Density, check_floating, covariance_matrices, standard_normal


class GaussianMixture(Density):
    """Σ_k w_k N(mean_k, cov_k); its score is Σ_k π_k(x)·(−cov_k⁻¹ (x − mean_k)).

    π_k(x) is the probability that x came from component k.

    means: (m, *event); cov: a variance or (d, d) shared by all, or (m, d, d); weights: (m,),
    normalised here, equal if not given.
    """

    means: Tensor
    factors: Tensor
    log_weights: Tensor

    def __init__(
        self, means: Tensor, cov: Tensor | float = 1.0, weights: Tensor | None = None
    ) -> None:
        super().__init__(means.shape[1:])
        check_floating("means", means)
        m = len(means)
        matrices = covariance_matrices(cov, self.dim, means).expand(m, self.dim, self.dim)
        weights = torch.ones(m) if weights is None else weights
        if weights.shape != (m,) or bool((weights < 0).any()) or float(weights.sum()) <= 0:
            raise ValueError(
                f"weights should be {m} numbers that are not negative, one for each mean; "
                f"got {weights.tolist()}"
            )
        self.register_buffer("means", means.detach().flatten(1))
        self.register_buffer("factors", torch.linalg.cholesky(matrices))
        self.register_buffer("log_weights", weights.to(means).log().log_softmax(0))

    def _log_joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log w_k N(x; mean_k, cov_k), (m, B), and the whitened residuals, (m, d, B)."""
        centred = (x - self.means[:, None]).mT
        white = torch.linalg.solve_triangular(self.factors, centred, upper=False)
        log_volume = self.factors.diagonal(dim1=1, dim2=2).log().sum(1)
        constant = 0.5 * self.dim * math.log(2 * math.pi)
        log_normal = -0.5 * white.square().sum(1) - log_volume[:, None] - constant
        return self.log_weights[:, None] + log_normal, white

    def _score(self, x: Tensor) -> Tensor:
        log_joint, white = self._log_joint(x)
        pulls = -torch.linalg.solve_triangular(self.factors.mT, white, upper=True)  # (m, d, B)
        return torch.einsum("mb,mdb->bd", log_joint.softmax(0), pulls)

    def _log_prob(self, x: Tensor) -> Tensor:
        return self._log_joint(x)[0].logsumexp(0)

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        which = torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
        noise = standard_normal((n, self.dim), self.means, generator)
        return self.means[which] + torch.einsum("bij,bj->bi", self.factors[which], noise)
