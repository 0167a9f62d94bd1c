"""The paper's Figure 1 made real: sensitivity along a curve and across it, under each penalty.

Points lie near a curve in the plane, their class changes along it, and their density, hence their
score, is known in closed form. What the margin does across the curve is of no use to the task.
Figure 1 says that an isotropic penalty takes both sensitivities away, and TASER the useless one.
"""

from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from taser._progress import Progress

from .curve import Curve
from .manifold2d_config import Config
from .manifold2d_result import METHODS, ON_CURVE, PLAIN, Result, Run
from .penalised import PENALTIES, train
from .portrait import Portrait, Scene
from .sensitivity import measure

__all__ = ["METHODS", "ON_CURVE", "PLAIN", "Config", "Result", "Run", "run"]


@dataclass(frozen=True, eq=False)
class Sample:
    """Draws near the curve. x, s, foot, s_foot, tangent: (n, 2); y: (n,).

    foot: the curve point nearest to x; s, s_foot: the score at either; tangent: of the curve.
    """

    x: Tensor
    y: Tensor
    s: Tensor
    foot: Tensor
    s_foot: Tensor
    tangent: Tensor

    @classmethod
    def draw(cls, curve: Curve, config: Config, generator: torch.Generator) -> "Sample":
        """Points of the very density whose score is used, so the Stein identity holds exactly.

        The two classes take turns along the curve, each over an equal length of it.
        """
        density = curve.blurred(config.sigma)
        x = density.sample(config.examples, generator)
        nearest = curve.nearest(x)
        foot = curve.points[nearest]
        y = curve.segment(x, config.segments) % 2
        return cls(x, y, density(x), foot, density(foot), curve.tangents[nearest])


def run(config: Config | None = None, progress: Progress | None = None) -> Result:
    """Train and measure every method at every strength with every seed.

    A seed fixes the data, the first weights and the order of the examples, for all methods alike.
    A control follows: TASER at its `shown` strength, with the residual taken on the curve itself.
    progress(done, total, label) is called before each training and once at the end.
    """
    config = config or Config()
    curve = Curve.sine(config.amplitude)
    plan = [(PLAIN, 0.0), *product(METHODS, config.strengths)]
    total = (len(plan) + 1) * len(config.seeds)
    tell = progress or (lambda *_: None)
    samples: dict[int, tuple[Sample, Sample]] = {}
    models: dict[tuple[str, float, int], nn.Module] = {}
    runs: list[Run] = []
    for seed in config.seeds:
        generator = torch.Generator().manual_seed(seed)
        samples[seed] = (
            Sample.draw(curve, config, generator),
            Sample.draw(curve, config, generator),
        )
        for method, strength in plan:
            tell(len(runs), total, f"{method}, strength {strength:g}, seed {seed}")
            model, done = _one(*samples[seed], config, method, strength, seed)
            models[method, strength, seed] = model
            runs.append(done)
    first = config.seeds[0]
    data = samples[first][0]
    scene = Scene.around(curve, data.x, data.y, border=0.2, step=0.01)
    rooms = torch.cat([curve.room(held_out.x, config.segments) for _, held_out in samples.values()])
    result = Result(config, float((rooms > config.eps).float().mean()), tuple(runs), scene)
    for seed in config.seeds:
        tell(len(runs), total, f"{ON_CURVE}, seed {seed}")
        runs.append(_one(*samples[seed], config, ON_CURVE, result.shown("taser"), seed)[1])
    portraits = {
        method: Portrait.of(models[method, result.shown(method), first], scene)
        for method in (PLAIN, *METHODS)
    }
    tell(total, total, "done")
    return replace(result, runs=tuple(runs), portraits=portraits)


def _one(
    data: Sample, held_out: Sample, config: Config, method: str, strength: float, seed: int
) -> tuple[nn.Module, Run]:
    """One training, measured."""
    on_curve = method == ON_CURVE
    penalty = None if method == PLAIN else PENALTIES["taser" if on_curve else method]()
    weight = config.weight(method, strength)
    at, s = (data.foot, data.s_foot) if on_curve else (data.x, data.s)
    model = train(
        data.x, data.y, penalty=penalty, weight=weight, at=at, s=s, seed=seed,
        steps=config.steps, batch=config.batch, width=config.width, rate=config.rate,
    )  # fmt: skip
    measured = measure(model, held_out.x, held_out.y, held_out.tangent, eps=config.eps)
    return model, Run(method, strength, weight, seed, measured)
