"""Cost of a residual: time and peak memory of every backend, in plain training steps.

    python benchmarks/estimators.py --out benchmarks/results

One plain step is forward, backward and optimiser step of the same model on the same batch. Each
penalty, forward and backward, is timed right after a plain step, and the ratio is the median over
interleaved repetitions, so that a slow moment of the machine hits both alike. Memory is the growth
of the resident set of a fresh process, at its peak, over that after a warm-up.
"""

import argparse
import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import nn

import taser
from measure import in_fresh_process, markdown, peak_growth, timed, write

PROBES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Method:
    """A plain step (backend None), or one penalty."""

    backend: str | None = None
    operator: str = "langevin"
    probes: int = 1

    @property
    def label(self) -> str:
        if self.backend is None:
            return "plain step"
        order = "full" if self.operator == "langevin" else "first-order"
        count = f", K = {self.probes}" if self.operator == "langevin" else ""
        return f"{self.backend}, {order}{count if self.backend != 'exact' else ''}"


@dataclass(frozen=True)
class Workload:
    """A model, a batch and the methods to try on them."""

    name: str
    batch: int
    shape: tuple[int, ...]
    build: Callable[[], nn.Module]
    methods: tuple[Method, ...]


RANDOM = tuple(
    Method(backend, "langevin", k)
    for backend in ("difference", "piecewise_linear", "reverse")
    for k in PROBES
)
FIRST_ORDER = tuple(
    Method(backend, "first_order") for backend in ("difference", "piecewise_linear", "reverse")
)


def small_mlp() -> nn.Module:
    """Two hidden layers of 256 for 64 inputs: the digits of scikit-learn."""
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


WORKLOADS = {
    "resnet18": Workload(
        "CIFAR ResNet-18, width 64, batch 32", 32, (3, 32, 32), taser.models.ResNet18,
        (Method(), *FIRST_ORDER, *RANDOM),
    ),
    "mlp": Workload(
        "MLP 64-256-256-10, batch 128", 128, (64,), small_mlp,
        (Method(), *FIRST_ORDER, *RANDOM, Method("exact")),
    ),
}  # fmt: skip


def stepper(workload: Workload, method: Method, model: nn.Module) -> Callable[[], None]:
    """One repetition of `method` as a function."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(workload.batch, *workload.shape, generator=generator)
    y = torch.randint(10, (workload.batch,), generator=generator)
    s = torch.randn(x.shape, generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def plain() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()

    if method.backend is None:
        return plain
    # Running statistics: the batch's own cost one more forward, alike for every backend.
    penalty = taser.SteinPenalty(
        batchnorm="running",
        operator=method.operator,  # type: ignore[arg-type]
        backend=method.backend,  # type: ignore[arg-type]
        probes=method.probes,
    )

    def penalised() -> None:
        optimiser.zero_grad()
        penalty(model, x, y, s).backward()

    return penalised


def times(workload: Workload, repetitions: int) -> dict[Method, list[tuple[float, float]]]:
    """(seconds, ratio to a plain step taken just before) of every method, repetitions interleaved.

    The pair shares whatever else the machine is doing at the moment, so their ratio does not.
    """
    model = workload.build().train()
    warm_up(workload, model)
    steps = {method: stepper(workload, method, model) for method in workload.methods}
    plain = steps[Method()]
    plain()
    taken: dict[Method, list[tuple[float, float]]] = {method: [] for method in steps}
    for _ in track(range(repetitions), description=f"time    {workload.name}"):
        for method, step in steps.items():
            before, seconds = timed(plain), timed(step)
            taken[method].append((seconds, seconds / before))
    return taken


def warm_up(workload: Workload, model: nn.Module) -> None:
    """Load and allocate, on two examples, what is loaded and allocated only once."""
    for method in workload.methods:
        stepper(replace(workload, batch=2), method, model)()


def peak_memory(key: str, method: Method, threads: int) -> int:
    """Bytes by which the resident set grows, at its peak, in one repetition (a fresh process)."""
    torch.set_num_threads(threads)
    workload = WORKLOADS[key]
    model = workload.build().train()
    warm_up(replace(workload, methods=(Method(), method)), model)
    step = stepper(workload, method, model)
    return peak_growth(step)


def measure(key: str, repetitions: int, threads: int) -> list[dict]:
    """One row for each method of a workload."""
    workload = WORKLOADS[key]
    taken = times(workload, repetitions)
    memory = {}
    for method in track(workload.methods, description=f"memory  {workload.name}"):
        memory[method] = in_fresh_process(peak_memory, key, method, threads)
    rows = []
    for method, pairs in taken.items():
        seconds, ratios = zip(*pairs, strict=True)
        rows.append(
            {
                **asdict(method),
                "label": method.label,
                "seconds": statistics.median(seconds),
                "ratio": statistics.median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
                "peak_bytes": memory[method],
                "memory_ratio": memory[method] / max(1, memory[Method()]),
            }
        )
    return rows


def as_table(rows: list[dict]) -> str:
    """Ratios, milliseconds and megabytes."""
    return markdown(
        ["what", "ms", "in plain steps", "range", "peak MB", "peak, in plain steps"],
        [
            [
                row["label"],
                f"{1e3 * row['seconds']:.1f}",
                f"{row['ratio']:.2f}",
                f"{row['ratio_low']:.2f}–{row['ratio_high']:.2f}",
                f"{row['peak_bytes'] / 1e6:.0f}",
                f"{row['memory_ratio']:.2f}",
            ]
            for row in rows
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", choices=WORKLOADS, nargs="+", default=list(WORKLOADS))
    parser.add_argument("--repetitions", type=int, default=3, help="of every method")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="folder for estimators.json and estimators.md")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = {
        "torch": torch.__version__, "machine": platform.machine(), "threads": arguments.threads,
        "repetitions": arguments.repetitions,
        "workloads": {
            WORKLOADS[key].name: measure(key, arguments.repetitions, arguments.threads)
            for key in arguments.workload
        },
    }  # fmt: skip
    text = f"torch {torch.__version__}, {platform.machine()}, {arguments.threads} threads\n"
    for name, rows in result["workloads"].items():
        text += f"\n## {name}\n\n{as_table(rows)}"
    print(text)
    if arguments.out:
        write(arguments.out, "estimators", "Cost of the residual", result, [text])


if __name__ == "__main__":
    main()
