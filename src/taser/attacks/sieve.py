"""Lets broken examples out of attacks that would go on with them."""

from collections.abc import Callable
from contextlib import suppress

import torch
import torch.nn.functional as F
from torch import Tensor

from .inside import inside
from .protocol import Model
from .threat import Threat


class _AllBroken(Exception):
    """Nothing is left to attack; ends a run from inside."""


class Sieve:
    """A model that is not asked again about an example it got wrong.

    An attack with a fixed number of steps asks about all of its examples to the end. This stands
    between the two: the first wrong answer inside the ball is kept, that row's later answers are
    made up (wrong, without gradient), and the run ends when no example is left. As examples do not
    meet inside an attack, the others are attacked as they would have been. Asked again about the
    clean examples, without a gradient, it repeats itself, also for a model that draws.

    x: (B, *); y: (B,). ranking: (B, C), classes by clean logit, the smallest first; found: (B, *),
    the wrongly answered points, x itself where there is none; broken: (B,).
    """

    def __init__(self, model: Model, x: Tensor, y: Tensor, threat: Threat) -> None:
        with torch.no_grad():
            logits = model(x)
        self.model, self.threat = model, threat
        self.x, self.y = x, y
        self.ranking = logits.sort(dim=1)[1]
        self._clean = logits
        self.broken = logits.argmax(1) != y
        self.found = x.clone()
        self._made_up = F.one_hot((y + 1) % logits.shape[1], logits.shape[1]).to(logits.dtype)
        self._rows = self.standing

    @property
    def standing(self) -> Tensor:
        """The numbers of the examples that are not broken."""
        return (~self.broken).nonzero()[:, 0]

    def run(self, attack: Callable[[Tensor, Tensor], object]) -> None:
        """attack(x, y) on the examples that stand; it has to ask this object for logits."""
        self._rows = self.standing
        if len(self._rows) == 0:
            return
        with suppress(_AllBroken):
            attack(self.x[self._rows], self.y[self._rows])

    def __call__(self, moved: Tensor) -> Tensor:
        """Logits, (R, C), for points of the rows that the run began with, (R, *)."""
        if not moved.requires_grad and torch.equal(moved, self.x[self._rows]):
            return self._clean[self._rows]
        asked = (~self.broken[self._rows]).nonzero()[:, 0]
        rows = self._rows[asked]
        points = moved if len(asked) == len(moved) else moved[asked]
        logits = self.model(points)
        wrong = logits.detach().argmax(1) != self.y[rows]
        if wrong.any():
            self._keep(rows[wrong], points.detach()[wrong])
        if len(asked) == len(moved):
            return logits
        return self._made_up[self._rows].index_put((asked,), logits)

    def _keep(self, rows: Tensor, points: Tensor) -> None:
        allowed = inside(self.threat, points, self.x[rows])
        self.found[rows[allowed]] = points[allowed]
        self.broken[rows[allowed]] = True
        if bool(self.broken[self._rows].all()):
            raise _AllBroken
