"""Projected gradient ascent (Madry et al., 2018), as training uses it."""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from .losses import AttackLoss, cross_entropy
from .protocol import Model
from .quiet import quiet
from .threat import Threat

Start = Literal["random", "gaussian", "clean"]
GAUSSIAN_START = 1e-3  # as TRADES and MART start: at x the KL has no gradient


def step_for(threat: Threat, steps: int) -> float:
    """2.5·ε/steps: 2/255 for ten steps within 8/255.

    >>> round(255 * step_for(Threat("linf", "8/255"), 10), 9)
    2.0
    """
    return 2.5 * threat.epsilon / steps


@dataclass(frozen=True)
class PGD:
    """x ← Π(x + η·ascent(∇ℓ)), `steps` times, from a random point of the ball.

    step_size
        η; None: 2.5·ε/steps, so that every point of the ball can be reached and left again.
    start
        "random": evenly from the ball; "gaussian": x + 0.001·N(0, 1), as TRADES and MART do;
        "clean": x itself.

    The model is asked in evaluation mode, and neither its statistics nor its gradients change.
    """

    threat: Threat = field(default_factory=Threat)
    steps: int = 10
    step_size: float | None = None
    start: Start = "random"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps should be at least 1; got {self.steps}")
        if self.step_size is not None and not self.step_size > 0:
            raise ValueError(f"step_size should be positive; got {self.step_size}")
        if self.start not in get_args(Start):
            raise ValueError(f"start should be one of {get_args(Start)}; got {self.start!r}")

    @property
    def length(self) -> float:
        """η."""
        return self.step_size or step_for(self.threat, self.steps)

    def __call__(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        loss: AttackLoss = cross_entropy,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Adversarial inputs, (B, *), detached. y: (B,)."""
        x = x.detach()
        length = self.length
        moved = self._begin(x, generator)
        with quiet(model):
            for _ in range(self.steps):
                gradient = input_gradient(model, moved, y, loss)
                moved = self.threat.project(moved + length * self.threat.ascent(gradient), x)
        return moved

    def _begin(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.start == "clean":
            return x.clone()
        if self.start == "random":
            return self.threat.random(x, generator)
        noise = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
        return x + GAUSSIAN_START * noise


def outputs_and_gradient(
    model: Model, x: Tensor, y: Tensor, loss: AttackLoss
) -> tuple[Tensor, Tensor]:
    """f(x), (B, …), and ∇_x Σ_i ℓ(f(x_i), y_i), (B, *), both detached.

    Each row of the gradient is that example's own, because the examples do not meet. The model
    gets a copy of x, for its first layer may work in place.
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        outputs = model(x.clone())
        (gradient,) = torch.autograd.grad(loss(outputs, y).sum(), x)
    return outputs.detach(), gradient


def input_gradient(model: Model, x: Tensor, y: Tensor, loss: AttackLoss) -> Tensor:
    """∇_x Σ_i ℓ(f(x_i), y_i): (B, *), each example's own because the examples do not meet."""
    return outputs_and_gradient(model, x, y, loss)[1]
