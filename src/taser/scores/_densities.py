"""Densities with scores in closed form, also after added Gaussian noise."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from taser._runtime import noise_like

from ._score import NoisedScore, check_floating, check_sigma

CHUNK = 1024  # inputs at a time, to bound the memory of a kernel density


class Density(nn.Module, ABC):
    """A density p on inputs of shape `event_shape`; calling it gives the score ∇log p.

    Subclasses work on rows of length d = prod(event_shape); this class folds images in and out.

    >>> import torch
    >>> p = GaussianMixture(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), 0.04)
    >>> score = p.at(sigma=0.3)  # of x + 0.3 ε
    >>> x_noised, s = score.noised(p.sample(100))
    """

    def __init__(self, event_shape: Sequence[int]) -> None:
        super().__init__()
        self.event_shape = tuple(event_shape)
        self.dim = math.prod(self.event_shape)

    def forward(self, x: Tensor) -> Tensor:
        """∇log p at x: (B, *event) → (B, *event), detached."""
        rows = self._rows(x)
        # In half precision neighbours could coincide.
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            return self._score(rows).to(x.dtype).view(x.shape)

    def log_prob(self, x: Tensor) -> Tensor:
        """log p at x: (B, *event) → (B,), differentiable."""
        return self._log_prob(self._rows(x))

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n independent draws, (n, *event)."""
        with torch.no_grad():
            return self._sample(n, generator).view(n, *self.event_shape)

    def at(self, *, sigma: float) -> "DensityScore":
        """The score of x + σε, with :meth:`NoisedScore.noised` and :meth:`NoisedScore.paired`."""
        return DensityScore(self, sigma)

    def _rows(self, x: Tensor) -> Tensor:
        check_floating("x", x)
        if tuple(x.shape[1:]) != self.event_shape:
            wanted = f"{type(self).__name__} expects inputs of shape {self.event_shape}"
            raise ValueError(f"{wanted}; got x of shape {tuple(x.shape)}")
        return x.flatten(1).to(next(self.buffers()).dtype)

    def extra_repr(self) -> str:
        return f"event_shape={self.event_shape}"

    @abstractmethod
    def smoothed(self, sigma: float) -> "Density":
        """The density of x + σε, p convolved with N(0, σ²I)."""

    @abstractmethod
    def _score(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _log_prob(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor: ...


class DensityScore(NoisedScore):
    """s_σ = ∇log p_σ in closed form, p_σ = p * N(0, σ²I) for a :class:`Density` p."""

    def __init__(self, density: Density, sigma: float) -> None:
        super().__init__()
        self.sigma, self.density = check_sigma(sigma), density
        self.smoothed = density.smoothed(self.sigma)

    def forward(self, x: Tensor) -> Tensor:
        """s_σ at x itself: (B, *event) → (B, *event), detached."""
        return self.smoothed(x)

    def at(self, *, sigma: float) -> "DensityScore":
        """The same density at another noise level."""
        return self.density.at(sigma=sigma)

    def __repr__(self) -> str:
        return f"DensityScore(sigma={self.sigma:g}, of {self.density})"


def covariance_matrices(cov: Tensor | float, dim: int, like: Tensor) -> Tensor:
    """A variance, a (d, d) matrix or a stack of them (m, d, d), as matrices; checked."""
    matrices = torch.as_tensor(cov, dtype=like.dtype, device=like.device)
    if matrices.ndim == 0:
        matrices = matrices * torch.eye(dim).to(like)
    if tuple(matrices.shape[-2:]) != (dim, dim) or matrices.ndim > 3:
        given = tuple(matrices.shape)
        raise ValueError(f"cov should be a number, ({dim}, {dim}) or a stack of such; got {given}")
    if not torch.allclose(matrices, matrices.mT, atol=1e-6 * float(matrices.abs().max())):
        raise ValueError("cov should be symmetric; it is not")
    if torch.linalg.cholesky_ex(matrices).info.any():
        raise ValueError("cov should be positive definite; its Cholesky factorisation fails")
    return matrices


class GaussianMixture(Density):
    """Σ_k w_k N(mean_k, cov_k); its score is −Σ_k P(k | x) cov_k⁻¹ (x − mean_k).

    means: (m, *event); cov: a variance or (d, d) shared by all, or (m, d, d); weights: (m,),
    normalised here, equal if not given.
    """

    means: Tensor
    factors: Tensor
    log_weights: Tensor

    def __init__(
        self, means: Tensor, cov: Tensor | float = 1.0, weights: Tensor | None = None
    ) -> None:
        check_floating("means", means)
        super().__init__(means.shape[1:])
        m = len(means)
        matrices = covariance_matrices(cov, self.dim, means).expand(m, self.dim, self.dim)
        weights = torch.ones(m) if weights is None else weights
        if weights.shape != (m,) or bool((weights < 0).any()) or float(weights.sum()) <= 0:
            raise ValueError(
                f"weights should be {m} numbers, none negative; got {weights.tolist()}"
            )
        self.register_buffer("means", means.detach().flatten(1))
        self.register_buffer("factors", torch.linalg.cholesky(matrices))
        self.register_buffer("log_weights", weights.to(means).log().log_softmax(0))

    def smoothed(self, sigma: float) -> "GaussianMixture":
        """Σ_k w_k N(mean_k, cov_k + σ²I)."""
        noise = sigma**2 * torch.eye(self.dim).to(self.factors)
        means, covs = self.means.view(-1, *self.event_shape), self.factors @ self.factors.mT
        return GaussianMixture(means, covs + noise, self.log_weights.exp())

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
        means = self.means[which]
        noise = noise_like(means, generator)
        return means + torch.einsum("bij,bj->bi", self.factors[which], noise)


class Gaussian(GaussianMixture):
    """N(mean, cov), whose score is s(x) = −cov⁻¹ (x − mean): a mixture of one.

    mean: (*event); cov: a variance or (d, d) over the flattened event.

    >>> import torch
    >>> Gaussian(torch.zeros(2), 4.0)(torch.tensor([[8.0, -4.0]]))
    tensor([[-2.,  1.]])
    """

    def __init__(self, mean: Tensor, cov: Tensor | float = 1.0) -> None:
        check_floating("mean", mean)
        if isinstance(cov, Tensor) and cov.ndim > 2:
            raise ValueError(f"Gaussian takes one covariance; got a stack of {len(cov)}")
        super().__init__(mean[None], cov)

    @classmethod
    def fit(cls, x: Tensor, shrinkage: float = 0.05) -> "Gaussian":
        """Mean and covariance of x, (n, *event), shrunk towards their isotropic part.

        cov = (1 − a)·S + a·(tr S / d)·I, a = `shrinkage`, is invertible even with constant pixels.
        """
        check_floating("x", x)
        if not 0.0 <= shrinkage <= 1.0:
            raise ValueError(f"shrinkage should lie in [0, 1]; got {shrinkage}")
        if len(x) < 2 or not bool(x.isfinite().all()):
            raise ValueError(f"a Gaussian needs two or more inputs, all finite; got {len(x)}")
        rows = x.flatten(1)
        sample = torch.cov(rows.T).reshape(rows.shape[1], rows.shape[1])
        isotropic = sample.diagonal().mean() * torch.eye(len(sample)).to(sample)
        return cls(x.mean(0), torch.lerp(sample, isotropic, shrinkage))

    @property
    def mean(self) -> Tensor:
        """The mean, (*event)."""
        return self.means[0].view(self.event_shape)

    @property
    def cov(self) -> Tensor:
        """The covariance, (d, d)."""
        return self.factors[0] @ self.factors[0].T


class KernelDensity(Density):
    """(1/n) Σ_i N(x_i, h² I): the distribution of the data after noise of standard deviation h.

    Its score s(x) = (Σ_i π_i(x) x_i − x)/h² points to the average of the data points near x. At the
    data points the score almost vanishes if h is small: take h no smaller than the distance between
    neighbours, or evaluate it at noised points.

    points: (n, *event); bandwidth: h, in the units of the inputs.
    """

    points: Tensor

    def __init__(self, points: Tensor, bandwidth: float) -> None:
        check_floating("points", points)
        super().__init__(points.shape[1:])
        if not bandwidth > 0:
            raise ValueError(f"bandwidth should be positive; got {bandwidth}")
        self.register_buffer("points", points.detach().flatten(1))
        self.bandwidth = float(bandwidth)

    def smoothed(self, sigma: float) -> "KernelDensity":
        """The estimate of bandwidth √(h² + σ²)."""
        points = self.points.view(-1, *self.event_shape)
        return KernelDensity(points, math.hypot(self.bandwidth, sigma))

    def _log_kernels(self, x: Tensor) -> Tensor:
        """log N(x; x_i, h² I), (B, n)."""
        # cdist by matrix products would lose digits when points are close.
        distance = torch.cdist(x, self.points, compute_mode="donot_use_mm_for_euclid_dist")
        constant = self.dim * math.log(self.bandwidth * math.sqrt(2 * math.pi))
        return -0.5 * (distance / self.bandwidth).square() - constant

    def _score(self, x: Tensor) -> Tensor:
        near = [self._log_kernels(rows).softmax(1) @ self.points for rows in x.split(CHUNK)]
        return (torch.cat(near) - x) / self.bandwidth**2

    def _log_prob(self, x: Tensor) -> Tensor:
        logs = [self._log_kernels(rows).logsumexp(1) for rows in x.split(CHUNK)]
        return torch.cat(logs) - math.log(len(self.points))

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        count, device = len(self.points), self.points.device
        centres = self.points[torch.randint(count, (n,), device=device, generator=generator)]
        return centres + self.bandwidth * noise_like(centres, generator)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, n={len(self.points)}, bandwidth={self.bandwidth:g}"
