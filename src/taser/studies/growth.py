"""How the cost of a step with TASER grows: with probes, batch, pixels and depth."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F

import taser
from taser.compare._jobs import Progress
from taser.models import WideResNet

from .measure import circumstances, in_fresh_process, peak_growth, timed


@dataclass(frozen=True)
class Size:
    """A network of `depth` layers for images of `pixels`², a batch, and K probes."""

    probes: int = 1
    batch: int = 16
    pixels: int = 32
    depth: int = 16


AXES: dict[str, tuple[int, ...]] = {
    "probes": (1, 2, 4, 8), "batch": (8, 16, 32, 64), "pixels": (16, 32, 64, 128),
    "depth": (10, 16, 22, 28, 40),
}  # fmt: skip


def sizes(axis: str) -> list[Size]:
    """The points of one axis; the others stay."""
    small = {"batch": 4} if axis == "pixels" else {}
    return [Size(**{**small, axis: value}) for value in AXES[axis]]


def amount(size: Size, axis: str) -> int:
    """What cost should be linear in: the number of pixels for images, else the setting itself."""
    value = int(getattr(size, axis))
    return value**2 if axis == "pixels" else value


def stepper(size: Size, *, penalised: bool) -> Callable[[], None]:
    """Loss and backward, with or without the full operator's penalty."""
    generator = torch.Generator().manual_seed(0)
    model = WideResNet(depth=size.depth, widen=1, classes=10).train()
    x = torch.rand(size.batch, 3, size.pixels, size.pixels, generator=generator)
    y = torch.randint(10, (size.batch,), generator=generator)
    s = torch.randn(x.shape, generator=generator)
    penalty = taser.SteinPenalty(backend="difference", probes=size.probes)

    def step() -> None:
        model.zero_grad()
        with taser.SharedPass(model) as shared:
            shared.outputs = model(x)
        loss = F.cross_entropy(shared.outputs, y)
        if penalised:
            loss = loss + 1e-3 * penalty(model, x, y, s, shared=shared)
        loss.backward()

    return step


def peak_memory(size: Size, threads: int) -> int:
    """Bytes of one penalised step's peak."""
    torch.set_num_threads(threads)
    stepper(Size(batch=2, pixels=16, depth=10), penalised=True)()
    return peak_growth(stepper(size, penalised=True))


def exponent(amounts: Sequence[float], costs: Sequence[float]) -> float:
    """p of cost ∝ amount^p, the least-squares slope of the logarithms.

    >>> round(exponent([1, 2, 4], [3, 6, 12]), 6)
    1.0
    """
    xs, ys = ([math.log(value) for value in values] for values in (amounts, costs))
    return statistics.linear_regression(xs, ys).slope


def measure(
    axes: Sequence[str] = tuple(AXES), *, repetitions: int = 3, progress: Progress | None = None
) -> dict[str, Any]:
    """Seconds and memory along every axis, and the exponents of both; JSON."""
    threads, curves, done = torch.get_num_threads(), {}, 0
    total = sum(len(AXES[axis]) for axis in axes)
    for axis in axes:
        points = []
        for size in sizes(axis):
            step, plain = (stepper(size, penalised=penalised) for penalised in (True, False))
            step(), plain()
            taken = [(timed(step), timed(plain)) for _ in range(repetitions)]
            points.append({
                **asdict(size), "amount": amount(size, axis),
                "seconds": statistics.median(first for first, _ in taken),
                "plain_seconds": statistics.median(second for _, second in taken),
                "memory": in_fresh_process(peak_memory, size, threads),
            })  # fmt: skip
            done += 1
            if progress:
                progress(done, total, axis)
        amounts = [point["amount"] for point in points]
        curves[axis] = {
            "points": points,
            "time_exponent": exponent(amounts, [point["seconds"] for point in points]),
            "memory_exponent": exponent(amounts, [point["memory"] for point in points]),
        }
    return {**circumstances(), "repetitions": repetitions, "curves": curves}
