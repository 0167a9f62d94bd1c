"""How the cost of a step with TASER grows: with probes, batch, pixels and depth.

python benchmarks/growth.py --axes batch --out out/growth
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, ScalarFormatter

import taser
from measure import circumstances, in_fresh_process, markdown, parser, peak_growth, timed, write
from taser.models import WideResNet


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
LABELS = {"probes": "probes K", "batch": "batch", "pixels": "pixels, width²", "depth": "layers"}


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
    """p of cost ∝ amount^p, the least-squares slope of the logarithms."""
    xs, ys = ([math.log(value) for value in values] for values in (amounts, costs))
    return statistics.linear_regression(xs, ys).slope


def measure(axis: str, repetitions: int) -> dict[str, Any]:
    """Seconds and memory along one axis, the others fixed, and the exponents of both.

    amount: what cost should be linear in, the number of pixels for images, else the setting itself.
    """
    points = []
    for value in AXES[axis]:
        size = Size(**{"batch": 4 if axis == "pixels" else 16, axis: value})
        step, plain = (stepper(size, penalised=penalised) for penalised in (True, False))
        step(), plain()
        taken = [(timed(step), timed(plain)) for _ in range(repetitions)]
        seconds, plain_seconds = map(statistics.median, zip(*taken, strict=True))
        points.append({
            **asdict(size), "amount": value**2 if axis == "pixels" else value,
            "seconds": seconds, "plain_seconds": plain_seconds,
            "memory": in_fresh_process(peak_memory, size, torch.get_num_threads()),
        })  # fmt: skip
    amounts = [point["amount"] for point in points]
    return {
        "points": points,
        "time_exponent": exponent(amounts, [point["seconds"] for point in points]),
        "memory_exponent": exponent(amounts, [point["memory"] for point in points]),
    }


def draw(curves: dict[str, Any]) -> Figure:
    """Two rows, time and memory; a column for each axis; dotted is linear growth."""
    figure = Figure(figsize=(3.2 * len(curves), 5.6), layout="constrained")
    grid = figure.subplots(2, len(curves), squeeze=False)
    for column, (axis, curve) in zip(grid.T, curves.items(), strict=True):
        points = curve["points"]
        amounts = [point["amount"] for point in points]
        milliseconds = [1e3 * point["seconds"] for point in points]
        megabytes = [point["memory"] / 1e6 for point in points]
        plain = [1e3 * point["plain_seconds"] for point in points]
        column[0].plot(amounts, milliseconds, "o-", label="with TASER")
        column[0].plot(amounts, plain, "s-", color="0.5", label="without")
        column[1].plot(amounts, megabytes, "o-")
        for axes, costs in zip(column, (milliseconds, megabytes), strict=True):
            linear = [costs[-1] * amount / amounts[-1] for amount in amounts]
            axes.plot(amounts, linear, "k:", linewidth=0.8)
            axes.set(xscale="log", yscale="log", xlabel=LABELS[axis])
            axes.set_xticks(amounts, [str(amount) for amount in amounts])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_formatter(NullFormatter())
    grid[0, 0].set_ylabel("step, ms")
    grid[1, 0].set_ylabel("peak memory, MB")
    grid[0, 0].legend(frameon=False)
    return figure


def table(result: dict[str, Any]) -> str:
    """The exponents: one is linear, less is better."""
    rows = [
        [LABELS[axis], ", ".join(str(p["amount"]) for p in curve["points"]),
         f"{curve['time_exponent']:.2f}", f"{curve['memory_exponent']:.2f}"]
        for axis, curve in result["curves"].items()
    ]  # fmt: skip
    return markdown(
        ["against", "from … to", "exponent of time", "exponent of memory"], rows,
        "cost ∝ size^p of a training step with the full operator (difference backend), a "
        f"WideResNet of factor 1; {result['threads']} thread(s), torch {result['torch']}.",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__, repetitions=3)
    options.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    given = options.parse_args(arguments)
    torch.set_num_threads(given.threads)
    curves = {axis: measure(axis, given.repetitions) for axis in given.axes}
    result = {**circumstances(), "repetitions": given.repetitions, "curves": curves}
    picture = "![growth](growth.png)\n"
    write(given.out, "growth", "How cost grows", result, [table(result), picture])
    draw(curves).savefig(given.out / "growth.png", dpi=150, bbox_inches="tight")
    print(table(result))


if __name__ == "__main__":
    main()
