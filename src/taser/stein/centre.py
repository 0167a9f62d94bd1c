"""The centre D_f that is taken off the residuals, since a learnt score leaves a bias."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .part import processes
from .terms import Terms

CENTERS = ("batch", "running", "calibrated", "none")


class Centre(nn.Module):
    """D_f ≈ E[r]: of the batch, running over batches, calibrated once, a number, or none.

    The batch's own mean makes no difference to the gradient whether it is detached or not, since
    Σ(r_i − r̄) = 0. For a running mean it does. Across processes the mean is that of the whole
    global batch and is detached, which gives the gradient of one process with that batch.
    """

    value: Tensor

    def __init__(self, kind: str | float, momentum: float, detach: bool) -> None:
        super().__init__()
        self.kind = kind
        self.momentum = momentum
        self.detach = detach
        constant = float(kind) if not isinstance(kind, str) else float("nan")
        self.register_buffer("value", torch.tensor(constant))

    @property
    def of_batch(self) -> bool:
        """Whether the centre is estimated from the very examples that it centres."""
        return self.kind == "batch"

    def forward(self, r: Tensor) -> Tensor:
        """The centre for residuals r, (B,): a scalar."""
        if self.kind == "none":
            return r.new_zeros(())
        if self.kind == "batch":
            return global_mean(r, self.detach)
        if self.kind == "running":
            return self._running(r)
        if self.kind == "calibrated" and bool(self.value.isnan()):
            raise RuntimeError(
                "center='calibrated' has no constant yet: call "
                "penalty.calibrate(model, loader, score) first, or load a state that has one"
            )
        return self.value.to(r.dtype)

    def _running(self, r: Tensor) -> Tensor:
        mean = global_mean(r, self.detach)
        if not self.training:
            return torch.where(self.value.isnan(), mean, self.value.to(r.dtype))
        before = torch.where(self.value.isnan(), mean.detach(), self.value.to(r.dtype))
        now = self.momentum * before + (1 - self.momentum) * mean
        self.value = now.detach().to(self.value.dtype)
        return now


def centred_square(terms: Terms, centre: Centre, *, unbiased: bool = False) -> Tensor:
    """R = (1/B) Σ_i (r_i − D)², a scalar.

    unbiased: (1/B) Σ_i (r_i − D)(r'_i − D'), r and r' from one half of the probes each.
    """
    if not unbiased or len(terms.per_probe) == 1:
        r = terms.residual
        return (r - centre(r)).square().mean()
    one, two = (half.mean(0) for half in terms.per_probe.chunk(2))
    if centre.of_batch:
        return ((one - centre(one)) * (two - centre(two))).mean()
    value = centre(terms.residual)
    return ((one - value) * (two - value)).mean()


def global_mean(r: Tensor, detach: bool) -> Tensor:
    """The mean of r over the batch, and over all processes if there are several."""
    if processes() == 1:
        mean = r.mean()
        return mean.detach() if detach else mean
    total = torch.stack([r.detach().sum(), r.new_tensor(float(len(r)))])
    dist.all_reduce(total)
    return total[0] / total[1]
