"""What TASER costs on top of each method: off, the paper's way, and our default, in one run."""

import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F

from taser.data import Dataset, Split
from taser.training import Config, read_recipe
from taser.training.randomness import seeded_step
from taser.training.setup import set_up

from .measure import in_fresh_process, peak_growth, timed
from .queue import Progress
from .table_config import METHODS

MODES = {
    "off": [],
    "paper": [
        "regulariser.name=taser", "regulariser.at=clean", "regulariser.operator=langevin",
        "regulariser.backend=reverse", "regulariser.every=1", "regulariser.fraction=1.0",
        "regulariser.unit=paper", "regulariser.weight=1.0",
    ],
    "default": ["regulariser.name=taser"],
}  # fmt: skip
"""The paper's way: second derivatives of every example in every step, the score network too."""

PROCESSES = 3  # whose peaks scatter by a tenth

PLAIN_LOOP = "straightforward loop"


@dataclass(frozen=True)
class Workload:
    """A CIFAR ResNet-18 and its batch."""

    width: int
    batch: int

    @property
    def name(self) -> str:
        return f"ResNet-18, width {self.width}, batch {self.batch}"


WORKLOADS = (Workload(64, 32), Workload(16, 128))


@dataclass(frozen=True)
class Cost:
    """One method in one mode. seconds: of a step, the median; spread: lowest and highest.

    ratio: to the method's "off" in the same repetition, the median over repetitions;
    memory: bytes that a step needs at its peak, memory_ratio: to "off".
    """

    workload: str
    method: str
    mode: str
    seconds: float
    milliseconds_per_example: float
    ratio: float
    ratio_low: float
    ratio_high: float
    memory: int | None = None
    memory_ratio: float | None = None


def images(size: int) -> Dataset:
    """Random pixels in the shape of CIFAR-10: time does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (size, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = Split(pixels, torch.randint(10, (size,), generator=generator))
    return Dataset("cifar10", split, split, split, tuple("0123456789"))


def configuration(workload: Workload, method: str, overrides: Sequence[str]) -> Config:
    """The laptop recipe of the method at this size, with the paper's activation.

    The rate is next to nothing: the same random batch over and over would end in infinities.
    """
    size = [f"model.width={workload.width}", f"loop.batch={workload.batch}"]
    always = [*size, "model.activation=relu", "optimiser.rate=1e-6"]
    return read_recipe(f"cifar10/{method}", [*always, *overrides])


def stepper(workload: Workload, method: str, mode: str) -> tuple[Callable[[], None], int]:
    """Training steps as a function, as many as make up one round of a lazy penalty; how many."""
    return stepper_of(workload, method, MODES[mode])


def stepper_of(
    workload: Workload, method: str, overrides: Sequence[str]
) -> tuple[Callable[[], None], int]:
    """The same for any settings."""
    config = configuration(workload, method, overrides)
    setup = set_up(config, images(workload.batch))
    batch = next(iter(setup.batches))
    x = batch.x.contiguous(memory_format=setup.layout)

    def round_of_steps() -> None:
        for number in range(config.regulariser.every):
            setup.learner.number = number
            generator = seeded_step(0, number, 0, setup.device)
            setup.learner.step(
                x, batch.y, None, generator, weight=1e-3, perturb=config.objective.awp
            )

    return round_of_steps, config.regulariser.every


def plain_pgd_loop(workload: Workload) -> Callable[[], None]:
    """PGD training as it is usually written: contiguous, nothing folded, nothing frozen."""
    config = configuration(workload, "pgd", [])
    setup = set_up(config, images(workload.batch))
    model = setup.learner.module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    batch = next(iter(setup.batches))
    x, y = batch.x.contiguous(), batch.y
    epsilon, size = config.objective.epsilon, config.objective.step_size
    optimiser = setup.learner.optimiser

    def step() -> None:
        model.eval()
        moved = (x + epsilon * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
        for _ in range(config.objective.steps):
            moved.requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(moved), y), moved)
            moved = moved.detach() + size * gradient.sign()
            moved = torch.min(torch.max(moved, x - epsilon), x + epsilon).clamp(0, 1)
        model.train()
        optimiser.zero_grad()
        F.cross_entropy(model(moved), y).backward()
        optimiser.step()

    return step


def peak_memory(workload: Workload, method: str, mode: str, threads: int) -> int:
    """Bytes of one step's peak: its activations, gradients and the optimiser's state.

    A step on two examples before it loads and allocates what is loaded only once. Attack steps
    follow each other in the same memory, so that one is enough.
    """
    torch.set_num_threads(threads)
    overrides = [*MODES[mode], "objective.steps=1"]
    warm_up, _ = stepper_of(replace(workload, batch=2), method, overrides)
    warm_up()
    return peak_growth(stepper_of(workload, method, overrides)[0])


def measure(
    workloads: Sequence[Workload] = WORKLOADS,
    methods: Sequence[str] = METHODS,
    *,
    repetitions: int = 3,
    memory: bool = True,
    progress: Progress | None = None,
    keep: Callable[[dict[str, Any]], object] = lambda _: None,
) -> dict[str, Any]:
    """Every method in every mode, repetitions interleaved; JSON.

    keep: called with what there is so far, after each method.
    """
    total, steps = len(workloads) * len(methods) * (repetitions + memory), count(1)

    def tick(label: str) -> None:
        if progress:
            progress(next(steps), total, label)

    costs: list[Cost] = []
    for workload in workloads:
        for method in methods:
            found = _times(workload, method, repetitions, tick)
            if memory:
                found = _with_memory(workload, method, found)
                tick(f"{workload.name}, {method}: memory")
            costs += found
            keep(_record(costs, repetitions))
    return _record(costs, repetitions)


def _record(costs: Sequence[Cost], repetitions: int) -> dict[str, Any]:
    return {
        "torch": torch.__version__, "machine": platform.machine(),
        "threads": torch.get_num_threads(), "repetitions": repetitions,
        "costs": [asdict(cost) for cost in costs],
    }  # fmt: skip


def _times(
    workload: Workload, method: str, repetitions: int, tick: Callable[[str], None]
) -> list[Cost]:
    """Each mode's step, and for PGD the loop that everybody writes, one after another."""
    steps = {mode: stepper(workload, method, mode) for mode in MODES}
    if method == "pgd":
        steps[PLAIN_LOOP] = plain_pgd_loop(workload), 1
    for step, _ in steps.values():
        step()
    taken: dict[str, list[float]] = {mode: [] for mode in steps}
    for _ in range(repetitions):
        for mode, (step, rounds) in steps.items():
            taken[mode].append(timed(step) / rounds)
        tick(f"{workload.name}, {method}")
    costs = []
    for mode, seconds in taken.items():
        ratios = [own / base for own, base in zip(seconds, taken["off"], strict=True)]
        typical = statistics.median(seconds)
        costs.append(
            Cost(
                workload.name, method, mode, typical, 1000 * typical / workload.batch,
                statistics.median(ratios), min(ratios), max(ratios),
            )
        )  # fmt: skip
    return costs


def _with_memory(workload: Workload, method: str, costs: list[Cost]) -> list[Cost]:
    threads = torch.get_num_threads()
    peaks = {
        mode: statistics.median(
            in_fresh_process(peak_memory, workload, method, mode, threads) for _ in range(PROCESSES)
        )
        for mode in MODES
    }
    return [
        replace(cost, memory=peaks[cost.mode], memory_ratio=peaks[cost.mode] / peaks["off"])
        if cost.mode in peaks
        else cost
        for cost in costs
    ]
