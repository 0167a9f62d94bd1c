"""The projection identity: the residual's mean under a shift is ∇f seen along that shift."""

import torch
from torch import Tensor

from taser.stein.guards import Backend
from taser.stein.terms import Function

from .batches import Residuals
from .sides import Sides, compare


def projection_identity(
    f: Function,
    x: Tensor,
    s: Tensor,
    grad_log_ratio: Tensor,
    *,
    backend: Backend = "reverse",
    probes: int = 1,
    step: float | None = None,
    generator: torch.Generator | None = None,
    batch: int = 256,
) -> Sides:
    """E_q[L_p f] = −E_q[∇f·∇log(q/p)] (projection-identity-shift), from x ~ q.

    f: (B, *) → (B,), smooth; x: (n, *), independent draws from q; s: like x, the score of p there;
    grad_log_ratio: like x, ∇log(q/p) there, which is the score of q less that of p.
    The options are those of :func:`stein_identity`.
    """
    if grad_log_ratio.shape != x.shape:
        raise ValueError(
            f"grad_log_ratio should have the shape of x, {tuple(x.shape)}; "
            f"got {tuple(grad_log_ratio.shape)}"
        )
    r = Residuals(backend, probes, step, generator, batch)
    along_shift = r(f, x, grad_log_ratio, operator="first_order")  # ∇f·∇log(q/p)
    return compare(r(f, x, s), -along_shift)
