"""What a reviewer asks TASER to be compared with: penalties that know nothing of the data."""

import torch
from torch import Tensor, nn

from taser._random import random_part
from taser._tensors import full_precision
from taser.attacks import Model
from taser.probes import Margin, Probe, Probed
from taser.stein._backends import gradient_with_graph
from taser.stein._batchnorm import SharedPass, asked
from taser.stein._layer_checks import plain_kernels
from taser.stein._model_state import unwrap_ddp


class GradientPenalty(nn.Module):
    """mean_i ‖∇m(x_i)‖²: the size of the probe's input gradient, alike in every direction.

    It is computed as TASER's penalty is, with BatchNorm's statistics fixed and in full precision,
    so that the score is all that differs. fraction: on a random part of the batch, as TASER's.
    """

    def __init__(self, probe: Probe | None = None, fraction: float = 1.0) -> None:
        super().__init__()
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction should lie in (0, 1]; got {fraction}")
        self.probe: Probe = Margin() if probe is None else probe
        self.fraction = fraction

    def extra_repr(self) -> str:
        return f"probe={self.probe!r}, fraction={self.fraction}"

    def forward(
        self,
        model: Model,
        x: Tensor,
        y: Tensor | None,
        s: Tensor | None = None,  # noqa: ARG002
        *,
        generator: torch.Generator | None = None,
        shared: SharedPass | None = None,
    ) -> Tensor:
        """A scalar. x: (B, *); the score is not needed, the generator for a part of the batch."""
        model = unwrap_ddp(model)
        if self.training and self.fraction < 1:
            if generator is None:
                raise ValueError("a part of the batch is drawn by a generator: give one")
            rows = random_part(len(x), self.fraction, generator)
            if rows is not None:
                x, y = x[rows], None if y is None else y[rows]
                shared = None if shared is None else shared.rows(rows)
        with asked(model, x, shared), torch.enable_grad(), plain_kernels():
            _, gradient = gradient_with_graph(Probed(model, self.probe, y), full_precision(x))
            return gradient.flatten(1).square().sum(1).mean()


class JacobianPenalty(nn.Module):
    """mean_i ‖∂z/∂x(x_i)‖²_F of all outputs z, by random projections (Hoffman et al., 2019).

    For a random unit vector v of C outputs, C·E‖vᵀJ‖² = ‖J‖²_F.
    """

    def __init__(self, projections: int = 1) -> None:
        super().__init__()
        if projections < 1:
            raise ValueError(f"projections should be at least 1; got {projections}")
        self.projections = projections

    def extra_repr(self) -> str:
        return f"projections={self.projections}"

    def forward(
        self,
        model: Model,
        x: Tensor,
        y: Tensor | None,  # noqa: ARG002
        s: Tensor | None = None,  # noqa: ARG002
        *,
        generator: torch.Generator | None = None,
        shared: SharedPass | None = None,
    ) -> Tensor:
        """A scalar. x: (B, *); labels and score are not needed."""
        model = unwrap_ddp(model)
        with asked(model, x, shared), torch.enable_grad(), plain_kernels():
            x = full_precision(x).detach().requires_grad_()
            z = model(x.clone()).reshape(len(x), -1)  # a copy: it may begin in place
            total = z.new_zeros(())
            for _ in range(self.projections):
                v = torch.randn(z.shape, generator=generator, device=z.device, dtype=z.dtype)
                v = v / v.norm(dim=1, keepdim=True)
                (gradient,) = torch.autograd.grad((v * z).sum(), x, create_graph=True)
                total = total + z.shape[1] * gradient.flatten(1).square().sum(1).mean()
        return total / self.projections
