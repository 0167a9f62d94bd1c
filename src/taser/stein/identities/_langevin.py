"""The Langevin Stein operator: its identity, its divergence form, and the inputs' shift in it."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from taser._runtime import rows_like
from taser.stein._checks import Backend, Watched, plain_kernels
from taser.stein._residual import Function, probe_gradient, values

from ._estimate import Estimate, Sides, compare, residuals


def stein_identity(
    f: Function, x: Tensor, s: Tensor, *, backend: Backend = "reverse", probes: int = 1,
    step: float | None = None, generator: torch.Generator | None = None, batch: int = 256,
) -> Estimate:  # fmt: skip
    """E_p[L_p f] = E_p[Δf + s·∇f] (app-langevin-identity): zero if s is the score of x's law.

    f: (B, *) → (B,); x: (n, *), independent draws from p that the score has not been fitted to;
    s: like x, the score there. A value many standard errors from zero says that s is not the
    score of p; a value near zero says so only of this f, so test several.

    backend, probes, step, generator: as for :func:`taser.stein_residual`. f has to be smooth: of a
    ReLU network's kinks only "difference" sees the curvature. batch: rows at once.

    >>> import torch
    >>> x = torch.randn(5000, 2, generator=torch.Generator().manual_seed(0))
    >>> f = lambda x: x.cos().sum(1)
    >>> stein_identity(f, x, -x).consistent_with(0)        # the score of N(0, I)
    True
    >>> stein_identity(f, x, -1.3 * x).consistent_with(0)  # that of a narrower law
    False
    """
    options = {"backend": backend, "probes": probes, "step": step, "generator": generator}
    return Estimate.of(residuals(f, x, s, batch=batch, **options))


def divergence_form(f: Function, x: Tensor, log_prob: Callable[[Tensor], Tensor]) -> Tensor:
    """L_p f(x) = (1/p(x)) ∇·(p(x) ∇f(x)) (app-langevin-divergence), at each x.

    f: (B, *) → (B,); x: (B, *); log_prob: (B, *) → (B,), log p up to a constant, differentiable.
    Returns (B,), without a graph, from one backward for each of the d coordinates.

    >>> import torch
    >>> x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    >>> divergence_form(lambda x: x.square().sum(1), x, lambda x: -x.square().sum(1) / 2)
    tensor([ 2., -4.])
    """
    with torch.enable_grad(), plain_kernels(), torch.autocast(x.device.type, enabled=False):
        x, gradient = probe_gradient(Watched(f, "exact", graph=False), x, graph=True)
        log_p = values(log_prob, x, "log_prob")
        if not log_p.requires_grad:
            raise ValueError("log_prob(x) should depend on x through autograd; it does not")
        density = (log_p - log_p.detach()).exp()  # p(·)/p(x): one at x, so nothing overflows
        flux = rows_like(density, x) * gradient
        divergence = x.new_zeros(len(x))
        for i, column in enumerate(flux.flatten(1).unbind(1)):
            (row,) = torch.autograd.grad(column.sum(), x, retain_graph=True)
            divergence += row.flatten(1)[:, i]
        return divergence


def projection_identity(
    f: Function, x: Tensor, s: Tensor, grad_log_ratio: Tensor, *, backend: Backend = "reverse",
    probes: int = 1, step: float | None = None, generator: torch.Generator | None = None,
    batch: int = 256,
) -> Sides:  # fmt: skip
    """E_q[L_p f] = −E_q[∇f·∇log(q/p)] (projection-identity-shift), from x ~ q.

    f: (B, *) → (B,), smooth; x: (n, *), independent draws from q; s: like x, the score of p there;
    grad_log_ratio: like x, ∇log(q/p) there, which is the score of q less that of p.
    The options are those of :func:`stein_identity`.
    """
    wanted, given = tuple(x.shape), tuple(grad_log_ratio.shape)
    if given != wanted:
        raise ValueError(f"grad_log_ratio should have the shape of x, {wanted}; got {given}")
    estimate = partial(
        residuals, f, x, backend=backend, probes=probes, step=step, generator=generator, batch=batch
    )
    along_shift = estimate(grad_log_ratio, operator="first_order")  # ∇f·∇log(q/p)
    return compare(estimate(s), -along_shift)
