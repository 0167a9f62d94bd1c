"""SPSA: ascent on a gradient that is estimated from outputs alone (Uesato et al., 2018)."""

from dataclasses import dataclass, field
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from taser.probes import margin, task_loss
from taser.stein._model_state import eval_mode

from ._attack import Model, WorstPoints, check_positive
from ._threat import Rng, Threat

Rule = Literal["adam", "momentum"]
BETAS = (0.9, 0.999)  # Adam's defaults; the first is the momentum of both rules
TINY = 1e-8
PAPER_STEP = 0.01
VALUES = 2048 * 3 * 32 * 32  # most numbers in one forward, to save memory


@dataclass(frozen=True)
class SPSA:
    """Projected ascent on the simultaneous-perturbation estimate of the margin loss's gradient.

        ĝ(x) = 1/n Σ_i [ℓ(x + δ v_i) − ℓ(x − δ v_i)] / (2δ) · v_i,   v_i ∈ {−1, 1}^d

    The paper's defaults are weak; :meth:`strong` is much stronger. The point with the largest
    margin loss is kept, and broken examples are dropped.

    step_size, delta: in units of the threat's norm. step_size: None: the paper's 0.01; in ℓ∞, or
    without a box, at least 2ε/iterations, to reach the ball's edge. rule: "adam", as in the paper;
    "momentum": steepest-ascent steps along the mean of past estimates, from `step_size` falling to
    zero, which finds more in ℓ2. chunk: inputs in one forward pass, fewer if they are large, but at
    least two for each example.
    """

    threat: Threat = field(default_factory=Threat)
    iterations: int = 32
    samples: int = 128
    delta: float = 0.01
    step_size: float | None = None
    rule: Rule = "adam"
    chunk: int = 2048
    name: str = "spsa"
    passes = property(lambda self: self.iterations * (2 * self.samples + 1))

    def __post_init__(self) -> None:
        if self.step_size is None:  # so that records and repr show the number
            reach_edge = self.threat.norm == "linf" or self.threat.low is None
            least = 2 * self.threat.epsilon / max(self.iterations, 1) if reach_edge else 0.0
            object.__setattr__(self, "step_size", max(PAPER_STEP, least))
        check_positive(self, "iterations", "samples", "delta", "step_size", "chunk")
        if self.rule not in get_args(Rule):
            raise ValueError(f"rule should be one of {get_args(Rule)}; got {self.rule!r}")

    @classmethod
    def strong(cls, threat: Threat | None = None) -> Self:
        """100 iterations × 512 samples, with steps that fall from ε/2."""
        threat = threat or Threat()
        return cls(threat, 100, 512, 0.01, threat.epsilon / 2, "momentum", name="spsa-strong")

    def __call__(self, model: Model, x: Tensor, y: Tensor, *, generator: Rng = None) -> Tensor:
        assert self.step_size is not None
        x = x.detach()
        x_adv, first, second = x.clone(), torch.zeros_like(x), torch.zeros_like(x)
        with eval_mode(model, freeze=True), torch.no_grad():
            worst = WorstPoints(model, x, y)
            rows, unit = worst.robust, self.threat.feature_unit(x)
            for step in range(self.iterations):
                if len(rows) == 0:
                    break
                valid = self.threat.valid(x_adv[rows], x[rows])
                gradient = self.gradient(model, valid, y[rows], generator)
                first[rows] = BETAS[0] * first[rows] + (1 - BETAS[0]) * gradient
                second[rows] = BETAS[1] * second[rows] + (1 - BETAS[1]) * gradient.square()
                if self.rule == "momentum":
                    left = 1 - step / self.iterations
                    move = self.step_size * left * self.threat.ascent(first[rows], valid)
                else:
                    mean = first[rows] / (1 - BETAS[0] ** (step + 1))
                    scale = (second[rows] / (1 - BETAS[1] ** (step + 1))).sqrt() + TINY
                    move = self.step_size * mean / scale * unit
                x_adv[rows] = self.threat.relax(x_adv[rows] + move, x[rows])
                valid = self.threat.valid(x_adv[rows], x[rows])
                rows = rows[worst.update(rows, valid, model(valid.clone()))]
        return worst.x

    def gradient(self, model: Model, x: Tensor, y: Tensor, generator: Rng = None) -> Tensor:
        """ĝ, (B, *): the mean over `samples` pairs of queries, `chunk` queries at a time."""
        total, unit = torch.zeros_like(x), self.threat.feature_unit(x)
        per_unit = torch.where(unit > 0, 1 / unit, 0.0)
        at_once = max(1, min(self.chunk, VALUES // x[0].numel()) // (2 * len(x)))
        for start in range(0, self.samples, at_once):
            count = min(at_once, self.samples - start)
            v = torch.randint(2, (count, *x.shape), device=x.device, generator=generator)
            v = 2 * v.to(x.dtype) - 1
            queries = torch.cat([x + self.delta * unit * v, x - self.delta * unit * v])
            loss = task_loss(margin, y)(model(queries.flatten(0, 1)), y.repeat(2 * count))
            above, below = loss.to(v).view(2, count, len(x))
            total += torch.einsum("nb,nb...->b...", (above - below) / (2 * self.delta), v)
        return total / self.samples * per_unit
