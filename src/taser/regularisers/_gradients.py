"""Penalties on the size of an input gradient, to compare TASER with. They need no score."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from taser.probes import Margin, Probe, Probed, cross_entropy
from taser.stein import Regulariser, SharedPass, SteinPenalty
from taser.stein._checks import check_choice, check_count, check_layers, plain_kernels
from taser.stein._residual import NO_GRADIENT, probe_gradient

Size = Literal["l1", "l2"]
Of = Literal["margin", "loss"]
GradientBackend = Literal["auto", "difference", "reverse"]


class GradientNorm(Regulariser):
    """mean_i ‖∇f(x_i)‖₁, or mean_i ‖∇f(x_i)‖₂², of the margin or of the loss.

    norm
        "l1": how far f moves, to first order, inside an ℓ∞ ball of radius one. With of="loss" it is
        the penalty of Rodríguez-Muñoz, Wang and Torralba (2024). "l2": the squared ℓ2 norm, the
        same in every direction, as in Drucker and Le Cun (1992).
    of
        "margin": the smooth logit margin, or `probe`; "loss": the cross-entropy of each example.
    backend
        How the gradient in the weights is computed. "difference" (and "auto"): by one difference of
        f along v, the sign of ∇f or ∇f itself, as ‖∇f‖₁ = v·∇f and d‖∇f‖₂² = 2v·d∇f for fixed v;
        right through every layer. "reverse": by double backward, in about twice the time.
    every, fraction, batchnorm, generator, seed
        As for every :class:`~taser.regularisers.Regulariser`.

    v·∇f is computed as in TASER, with v in place of the score (BatchNorm, precision, layers).

    >>> import torch
    >>> model, x, y = torch.nn.Linear(4, 3), torch.rand(8, 4), torch.arange(8) % 3
    >>> penalty = GradientNorm("l1", of="loss")
    >>> loss = torch.nn.functional.cross_entropy(model(x), y) + 0.1 * penalty(model, x, y)
    """

    def __init__(
        self, norm: Size = "l2", of: Of = "margin", *, probe: Probe | None = None,
        backend: GradientBackend = "auto", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        check_choice("norm", norm, get_args(Size))
        check_choice("backend", backend, get_args(GradientBackend))
        check_choice("of", of, get_args(Of))
        if of == "loss" and probe is not None:
            raise ValueError("probe is for of='margin'; of='loss' takes the cross-entropy")
        self.norm: Size = norm
        self.of: Of = of
        self.probe: Probe = probe or (Margin() if of == "margin" else cross_entropy)
        self.slope = None
        if backend != "reverse":
            self.slope = SteinPenalty(
                self.probe, operator="first_order", backend="difference", center="none"
            )

    def extra_repr(self) -> str:
        probe = getattr(self.probe, "__name__", repr(self.probe))
        return f"norm={self.norm!r}, of={self.of!r}, probe={probe}, fraction={self.fraction}"

    def penalise(
        self, model: nn.Module, x: Tensor, y: Tensor | None, s: Tensor | None, shared: SharedPass,  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        """The mean over the examples, a scalar."""
        f = Probed(model, self.probe, y)
        if self.slope is None:
            check_layers(model, "reverse")
            with torch.enable_grad(), plain_kernels():
                return self._size(probe_gradient(f, x, graph=True)[1])
        _, gradient = probe_gradient(f, x)
        v = gradient.sign() if self.norm == "l1" else 2 * gradient
        slope = self.slope.residuals(model, x, y, v, shared, self._layers)[0].mean()  # v·∇f
        return self._size(gradient) + slope - slope.detach()

    def _size(self, gradient: Tensor) -> Tensor:
        flat = gradient.flatten(1)
        return (flat.abs() if self.norm == "l1" else flat.square()).sum(1).mean()


class Jacobian(Regulariser):
    """mean_i ‖∂z/∂x(x_i)‖²_F of all outputs z, by random projections (Hoffman et al., 2019).

    For a random unit vector v of C outputs, C·E‖vᵀJ‖² = ‖J‖²_F.
    """

    def __init__(self, projections: int = 1, **options: Any) -> None:
        super().__init__(**options)
        check_count("projections", projections)
        self.projections = projections

    def extra_repr(self) -> str:
        return f"projections={self.projections}"

    def penalise(
        self, model: nn.Module, x: Tensor, y: Tensor | None, s: Tensor | None, shared: SharedPass,  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        """The mean over the examples, a scalar."""
        check_layers(model, "reverse")
        generator = self.generator_on(x.device)
        with torch.enable_grad(), plain_kernels():
            x = x.detach().requires_grad_()
            z = model(x.clone()).reshape(len(x), -1)  # a copy: it may begin in place
            if not z.requires_grad:
                raise ValueError(NO_GRADIENT)
            total = z.new_zeros(())
            for _ in range(self.projections):
                v = torch.randn(z.shape, generator=generator, device=z.device, dtype=z.dtype)
                v = v / v.norm(dim=1, keepdim=True)
                (gradient,) = torch.autograd.grad((v * z).sum(), x, create_graph=True)
                total = total + z.shape[1] * gradient.flatten(1).square().sum(1).mean()
        return total / self.projections
