"""The paper's toy regression (§5.1): y = sin x learnt from x ~ N(0, 1), then asked further out.

The paper gives no network, optimiser, sample or wide grid. Of 29 settings tried, these show the
range: by this module with five seeds (†), or by a scratch script with exact derivatives and three.
ℓ2 is λ‖θ‖²; Adam's rate falls along a cosine (* is constant). In distribution (ID) the paper has
6.0e-2 with ℓ2 and 2.0e-2 with TASER at λ = 0.1, and 4.2e-5 at λ = 0; on its unknown wide grid 1.27
at λ = 0, 5.41 with ℓ2 at 1e-3, 0.54 with TASER at 0.1. Ours, as medians over the seeds:

    layers          samples    steps  rate   ID: ℓ2, TASER, none         ±10: none, ℓ2, TASER
    tanh 64         512 fixed  1500   1e-2    5.1e-2   1.8e-2   9.5e-5   2.16   3.55   0.68
    tanh 128        256 fixed  1500   1e-2    5.5e-2   1.8e-2   2.6e-5   3.39   6.80   0.90
    tanh 64, 64     512 fixed  1500   1e-2    5.9e-2   1.8e-2   2.7e-5   1.12   4.97   0.60
    tanh 64, 64     256 fixed  2000   1e-3    5.7e-2   2.1e-2   3.3e-4   1.04   1.56   0.79
    SiLU 64, 64     512 fixed  1500   1e-2   14.5e-2   1.8e-2   3.9e-6   5.20   3.52   1.07
    softplus 64, 64 256 fixed  1500   1e-2   11.5e-2   2.1e-2   1.9e-4   2.18   5.57   1.05
    tanh 64         256 fresh  3000   1e-2    4.9e-2   1.9e-2   1.7e-5   2.62   3.14   0.77
    tanh 32, 32     256 fresh  3000   1e-2    6.1e-2   1.9e-2   1.8e-6   1.43   2.64   0.52
    tanh 64, 64     256 fresh  3000   1e-3    6.1e-2   1.8e-2   4.6e-6   2.05   3.39   0.73  *
    tanh 64, 64     256 fresh  4000   1e-2    6.1e-2   1.8e-2   4.6e-7   1.15   3.89   0.47
    tanh 64, 64     128 fresh  3000   1e-2    6.2e-2   1.9e-2   3.3e-7   1.26   3.34   0.45  †
    tanh 64, 64     128 fresh  2000   2e-2    6.1e-2   1.9e-2   1.7e-6   1.00   1.45   0.44  †
    tanh 64, 64     128 fresh  2000   1e-2    6.3e-2   1.9e-2   6.3e-7   1.20   3.07   0.45  † ours

Units that grow without bound, and ‖θ‖²/2 in place of ‖θ‖² (2.8e-2), miss ℓ2's error in
distribution. Ours was chosen for nearness to the paper on both counts, and is kinder to TASER than
most: by medians on ±10, ℓ2's error was not above TASER's at λ = 1e-4 in 3 of the 29 settings, at
1e-3 in 4, at 1e-2 in 16 and at 0.1 in none; TASER's was the smaller at every λ in 11.
"""

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import pairwise, repeat

import torch
from torch import Tensor, nn

from taser import probes, scores
from taser._progress import Progress
from taser.stein import SteinPenalty

from .toy1d_config import Config, Method
from .toy1d_result import Fit, Result, points
from .toy1d_theory import theory

__all__ = ["Config", "Fit", "Method", "Result", "run", "theory"]


def run(config: Config | None = None, progress: Progress | None = None) -> Result:
    """Train every row with every seed. `progress(done, total, label)` is called after each fit."""
    config = Config() if config is None else config
    start = time.perf_counter()
    jobs = [(method, weight, seed) for method, weight in config.rows for seed in config.seeds]
    fits = []
    for fit in _fits(config, jobs):
        fits.append(fit)
        if progress is not None:
            progress(len(fits), len(jobs), f"{fit.method} λ={fit.weight:g} seed {fit.seed}")
    return Result(config, tuple(fits), torch.__version__, time.perf_counter() - start)


def train(config: Config, method: Method, weight: float, seed: int) -> nn.Module:
    """A network trained on E(f − sin x)² plus λ times its regulariser.

    A seed fixes the first weights and every batch, so the rows of one seed can be paired.
    """
    model = network(config.hidden, seed)
    regulariser = REGULARISERS[method](config, seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=config.learning_rate, fused=True)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, config.steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(config.steps):
        x = torch.randn(config.batch, 1, generator=generator)
        loss = (model(x) - x.sin()).square().mean() + weight * regulariser(model, x)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        decay.step()
    return model


def network(hidden: Sequence[int], seed: int) -> nn.Sequential:
    """Layers of tanh units from one number to one number, PyTorch's own initial weights."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        layers = [nn.Linear(before, after) for before, after in pairwise((1, *hidden, 1))]
    parts = [part for layer in layers for part in (layer, nn.Tanh())]
    return nn.Sequential(*parts[:-1])


Regulariser = Callable[[nn.Module, Tensor], Tensor | float]


def _nothing(_config: Config, _seed: int) -> Regulariser:
    return lambda _model, _x: 0.0


def _squared_weights(_config: Config, _seed: int) -> Regulariser:
    """‖θ‖², biases too."""
    return lambda model, _x: nn.utils.parameters_to_vector(model.parameters()).square().sum()


def _squared_residual(config: Config, seed: int) -> Regulariser:
    """E[r²], the paper's penalty here: in one dimension one Rademacher probe is exact."""
    score = scores.Gaussian(torch.zeros(1), 1.0)
    penalty = SteinPenalty(probes.Output(), backend=config.backend, center="none", seed=seed)
    return lambda model, x: penalty(model, x, None, score(x))


REGULARISERS: dict[Method, Callable[[Config, int], Regulariser]] = {
    "none": _nothing,
    "l2": _squared_weights,
    "taser": _squared_residual,
}


@torch.no_grad()
def evaluate(config: Config, model: nn.Module, method: Method, weight: float, seed: int) -> Fit:
    """The errors of a trained network, on draws that no training saw and on the wide grids."""
    # Another stream than the batches', which start at the seed itself.
    generator = torch.Generator().manual_seed(1_000_000 + seed)
    fresh = torch.randn(config.test_points, 1, generator=generator)
    id_mse = float((model(fresh) - fresh.sin()).double().square().mean())
    x = points(config)
    forecast = model(x.float()[:, None])[:, 0].double().round(decimals=6)
    if not (math.isfinite(id_mse) and bool(forecast.isfinite().all())):
        raise RuntimeError(
            f"training diverged (method {method}, λ = {weight:g}, seed {seed}): lower the "
            f"learning rate of {config.learning_rate:g}"
        )
    ood = tuple(squared_errors_within(x, forecast, w) for w in config.half_widths)
    return Fit(method, weight, seed, id_mse, ood, tuple(forecast.tolist()))


def squared_errors_within(x: Tensor, forecast: Tensor, half_width: float) -> float:
    """The mean of (forecast − sin x)² over the points of x, (n,), within ±half_width."""
    inside = x.abs() <= half_width + 1e-9
    return float((forecast - x.sin())[inside].square().mean())


def _fit(config: Config, job: tuple[Method, float, int]) -> Fit:
    with _one_thread():
        return evaluate(config, train(config, *job), *job)


def _fits(config: Config, jobs: list[tuple[Method, float, int]]) -> Iterator[Fit]:
    """Every fit, in the order of the jobs, here or shared among processes."""
    if config.workers == 1:
        yield from map(_fit, repeat(config), jobs)
        return
    # Spawned, because a forked copy of torch's thread pools can hang.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(config.workers, mp_context=spawn) as pool:
        yield from pool.map(_fit, repeat(config), jobs)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks this small gain nothing from threads, whose number would change the rounding."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
