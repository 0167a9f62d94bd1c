"""The Stein identity: the first thing to ask of a score."""

import torch
from torch import Tensor

from taser.stein.guards import Backend
from taser.stein.terms import Function

from .batches import Residuals
from .estimate import Estimate


def stein_identity(
    f: Function,
    x: Tensor,
    s: Tensor,
    *,
    backend: Backend = "reverse",
    probes: int = 1,
    step: float | None = None,
    generator: torch.Generator | None = None,
    batch: int = 256,
) -> Estimate:
    """E_p[L_p f] = E_p[Δf + s·∇f] (app-langevin-identity): zero if s is the score of x's law.

    f: (B, *) → (B,); x: (n, *), independent draws from p that the score has not been fitted to;
    s: like x, the score there. A value many standard errors from zero says that s is not the
    score of p; a value near zero says so only of this f, so ask with several.

    backend, probes, step, generator
        As for :func:`taser.stein_residual`. f has to be smooth: at a kink the Laplacian has a mass
        that "reverse" and "exact" do not see, so that on a ReLU network even the right score
        fails; "difference" sees it.
    batch
        How many rows are worked on at once. Labels follow their rows if f is a
        :class:`taser.probes.Probed`.

    >>> import torch
    >>> x = torch.randn(5000, 2, generator=torch.Generator().manual_seed(0))
    >>> f = lambda x: x.cos().sum(1)
    >>> stein_identity(f, x, -x).consistent_with(0)        # the score of N(0, I)
    True
    >>> stein_identity(f, x, -1.3 * x).consistent_with(0)  # that of a narrower law
    False
    """
    r = Residuals(backend, probes, step, generator, batch)
    return Estimate.of(r(f, x, s))
