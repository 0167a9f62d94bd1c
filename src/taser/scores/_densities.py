"""The kernel density estimate: a score for any data set, with nothing to train."""

import math
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


class KernelDensity(Density):
    """(1/n) Σ_i N(x_i, h² I): the law of the data after noise of standard deviation h.

    Its score s(x) = (Σ_i π_i(x) x_i − x)/h² pulls towards the average of the near data points.
    Exact for the noised data, and a fair score for a few thousand points. At the data points
    themselves a narrow estimate has almost no score, since each is its own best explanation: take
    h no smaller than the distance between neighbours, or ask at noised points.

    points: (n, *event); bandwidth: h, in the units of the inputs; chunk: rows of x at a time,
    which bounds memory at chunk × n.
    """

    points: Tensor

    def __init__(self, points: Tensor, bandwidth: float, chunk: int = 1024) -> None:
        super().__init__(points.shape[1:])
        check_floating("points", points)
        if not bandwidth > 0:
            raise ValueError(f"bandwidth should be positive; got {bandwidth}")
        if chunk < 1:
            raise ValueError(f"chunk should be at least 1; got {chunk}")
        self.register_buffer("points", points.detach().flatten(1))
        self.bandwidth = float(bandwidth)
        self.chunk = chunk

    def _log_kernels(self, x: Tensor) -> Tensor:
        """log N(x; x_i, h² I), (B, n)."""
        # The plain difference: cdist's matrix-product route loses digits when points are close.
        distance = torch.cdist(x, self.points, compute_mode="donot_use_mm_for_euclid_dist")
        constant = self.dim * math.log(self.bandwidth * math.sqrt(2 * math.pi))
        return -0.5 * (distance / self.bandwidth).square() - constant

    def _score(self, x: Tensor) -> Tensor:
        parts = []
        for rows in x.split(self.chunk):
            nearby = self._log_kernels(rows).softmax(1) @ self.points
            parts.append((nearby - rows) / self.bandwidth**2)
        return torch.cat(parts)

    def _log_prob(self, x: Tensor) -> Tensor:
        logs = [self._log_kernels(rows).logsumexp(1) for rows in x.split(self.chunk)]
        return torch.cat(logs) - math.log(len(self.points))

    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        which = torch.randint(
            len(self.points), (n,), device=self.points.device, generator=generator
        )
        noise = standard_normal((n, self.dim), self.points, generator)
        return self.points[which] + self.bandwidth * noise

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, n={len(self.points)}, bandwidth={self.bandwidth:g}"
