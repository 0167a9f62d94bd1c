"""PGD as an evaluation uses it: many steps, several starts, broken examples leave at once."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .losses import AttackLoss, margin
from .pgd import outputs_and_gradient, step_for
from .protocol import Model
from .quiet import quiet
from .threat import Threat
from .words import in_words
from .worst import Worst


@dataclass(frozen=True)
class RestartedPGD:
    """Projected gradient ascent from `restarts` random points, or from x itself.

    step_size
        None: 2.5·ε/steps, so that every point of the ball can be reached and left again.
    loss
        What is ascended; by default the margin, which unlike cross-entropy cannot saturate.

    An example leaves at the first step that breaks it; of the others the point with the largest
    margin loss is kept.
    """

    threat: Threat = field(default_factory=Threat)
    steps: int = 50
    restarts: int = 5
    step_size: float | None = None
    loss: AttackLoss = margin
    random_start: bool = True
    name: str = "pgd"
    _leaves = True  # at the first step that breaks it

    def __repr__(self) -> str:
        return in_words(self)

    def __post_init__(self) -> None:
        for option in ("steps", "restarts"):
            if getattr(self, option) < 1:
                raise ValueError(f"{option} should be at least 1; got {getattr(self, option)}")
        if self.step_size is not None and not self.step_size > 0:
            raise ValueError(f"step_size should be positive; got {self.step_size}")

    @property
    def passes(self) -> int:
        """Forward passes that an example costs at most; a backward pass counts two."""
        return self._starts * (3 * self.steps + 1)

    @property
    def _starts(self) -> int:
        """From x itself every ascent would be the same."""
        return self.restarts if self.random_start else 1

    def __call__(
        self, model: Model, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Attacked inputs, (B, *), detached. y: (B,)."""
        x = x.detach()
        with quiet(model):
            worst = Worst(model, x, y)
            for _ in range(self._starts):
                rows = worst.standing if self._leaves else torch.arange(len(x), device=x.device)
                if len(rows) == 0:
                    break
                begin = self.threat.random(x[rows], generator) if self.random_start else x[rows]
                self._ascend(model, begin, x, y, rows, worst)
        return worst.x

    def _ascend(
        self, model: Model, moved: Tensor, x: Tensor, y: Tensor, rows: Tensor, worst: Worst
    ) -> None:
        length = self.step_size or step_for(self.threat, self.steps)
        for _ in range(self.steps):
            logits, gradient = outputs_and_gradient(model, moved, y[rows], self.loss)
            stands = worst.offer(rows, moved, logits)
            if self._leaves:
                rows, moved, gradient = rows[stands], moved[stands], gradient[stands]
            if len(rows) == 0:
                return
            moved = self.threat.project(moved + length * self.threat.ascent(gradient), x[rows])
        with torch.no_grad():
            worst.offer(rows, moved, model(moved.clone()))  # which may work in place


class LastingPGD(RestartedPGD):
    """The same, but every example is ascended to the end, from every start.

    For :class:`Transfer`: a point that barely crosses the surrogate's boundary says little of
    another model.
    """

    _leaves = False
