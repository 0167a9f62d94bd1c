"""Time and memory of a step with the two lines of the README, beside other robust training.

python benchmarks/two_lines.py --threads 1                     # a quarter of an hour
python benchmarks/two_lines.py --threads 1 --workloads cnn mlp # of some networks
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import taser
from measure import (
    Stepper,
    circumstances,
    in_fresh_process,
    interleaved,
    markdown,
    parser,
    peak_growth,
    write,
)
from taser.data import Dataset, Split
from taser.training import Config, set_up
from taser.training._recipes import override


@dataclass(frozen=True)
class Workload:
    """A network, its inputs and the score of their data."""

    name: str
    model: str
    width: int
    shape: tuple[int, ...]
    batch: int
    score: str  # a shipped denoiser, or "gaussian" for a table
    epsilon: float


WORKLOADS = {
    "mlp": Workload("MLP on a table", "mlp", 64, (30,), 64, "gaussian", 0.3),
    "cnn": Workload("small CNN, 28×28", "cnn", 8, (1, 28, 28), 64, "fashion-mnist", 0.1),
    "vit": Workload(
        "ViT, 0.8 M parameters", f"{__file__}:VisionTransformer", 128, (3, 32, 32), 32, "cifar10",
        8 / 255,
    ),
    "resnet16": Workload(
        "ResNet-18, width 16", "resnet18", 16, (3, 32, 32), 32, "cifar10", 8 / 255
    ),
    "resnet64": Workload(
        "ResNet-18, width 64", "resnet18", 64, (3, 32, 32), 32, "cifar10", 8 / 255
    ),
}  # fmt: skip


class VisionTransformer(nn.Module):
    """Patches of 4×4 pixels, four blocks with LayerNorm, the mean of the tokens to 10 classes."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.position = nn.Parameter(0.02 * torch.randn(1, 64, width))
        block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.blocks(tokens).mean(1))


PGD_10 = ("objective.name=pgd", "objective.steps=10")
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
Rows = dict[str, Callable[[], Stepper]]


def random_data(workload: Workload) -> Dataset:
    """One batch: time does not depend on what it shows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(workload.batch, *workload.shape, generator=generator)
    split = Split(x, torch.randint(10, (len(x),), generator=generator))
    return Dataset(workload.score, split, split, split, tuple("0123456789"))


def in_training(workload: Workload, *overrides: str) -> Stepper:
    """Steps of `taser train`, as many as make up one round of a lazy penalty."""
    own = ":" in workload.model
    config = override(Config(), [
        f"model.name={workload.model}", f"loop.batch={workload.batch}", "validation.steps=1",
        f"model.options={{width: {workload.width}}}" if own else f"model.width={workload.width}",
        *([] if own else ["model.activation=silu"]), f"objective.epsilon={workload.epsilon}",
        "optimiser.name=sgd", "optimiser.momentum=0", "optimiser.rate=1e-3", "data.augment=none",
        *overrides,
    ])  # fmt: skip
    setup = set_up(config, random_data(workload))
    batch = next(iter(setup.batches))
    x, every = (
        batch.x.contiguous(memory_format=setup.layout),
        getattr(setup.learner.regulariser, "every", 1),
    )

    def steps() -> None:
        for number in range(every):
            setup.learner.step_number = number
            generator = torch.Generator().manual_seed(number)
            setup.learner.step(x, batch.y, generator, weight=0.1, perturb=False)

    return steps, every


def in_own_loop(
    workload: Workload, regulariser: taser.regularisers.Regulariser | None = None,
    base: Loss = lambda model, x, y: F.cross_entropy(model(x), y),
) -> Stepper:  # fmt: skip
    """Steps of a plain loop on a network of its own, with the regulariser attached to it."""
    torch.manual_seed(0)
    if ":" in workload.model:
        model: nn.Module = VisionTransformer(workload.width)
    else:
        model = taser.models.build(
            workload.model, classes=10, shape=workload.shape, width=workload.width,
            activation="silu",
        )  # fmt: skip
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    train = random_data(workload).train
    every = 1 if regulariser is None else regulariser.every
    if regulariser is not None:
        regulariser.attach(model)

    def steps() -> None:
        for _ in range(every):
            loss = base(model, train.x, train.y)
            if regulariser is not None:
                loss = loss + 0.1 * regulariser(model, train.x, train.y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return steps, every


def rows(workload: Workload) -> Rows:
    """The steps that are compared, the plain one first."""
    box = (0.0, 1.0) if len(workload.shape) == 3 else (None, None)
    threat = taser.Threat("linf", workload.epsilon, *box)
    if workload.score == "gaussian":
        gaussian = taser.scores.Gaussian.fit(random_data(workload).train.x)
        score: taser.scores.NoisedScore = gaussian.at(sigma=1.0)
    else:
        score = taser.scores.pretrained(workload.score).at(timestep=50)

    def own(regulariser: taser.regularisers.Regulariser | None = None, **base: Loss) -> Any:
        return lambda: in_own_loop(workload, regulariser, **base)

    def pgd(steps: int) -> Loss:
        return taser.objectives.PGD(taser.attacks.PGD(threat, steps))

    norm = taser.regularisers.GradientNorm
    one_step = taser.objectives.Fast(taser.objectives.one_step_pgd(threat))
    return {
        "plain": own(),
        "TASER, the two lines": own(taser.Taser(score, threat=threat)),
        "TASER in `taser train`": lambda: in_training(workload, "regulariser.name=taser"),
        "TASER, each example in each step": own(
            taser.Taser(score, threat=threat, fraction=1.0, every=1)
        ),
        "TASER, form `paper` by double backward": own(
            taser.Taser(score, threat=threat, form="paper", backend="reverse")
        ),
        "‖∇m‖₁, a third, each second step": own(norm("l1", fraction=1 / 3, every=2)),
        "‖∇m‖₁, the whole batch": own(norm("l1")),
        "one-step adversarial": own(base=one_step),
        "PGD-3": own(base=pgd(3)),
        "PGD-10": own(base=pgd(10)),
        "PGD-10 in `taser train`": lambda: in_training(workload, *PGD_10),
        "PGD-10 + form `paired` in `taser train`": lambda: in_training(
            workload, *PGD_10, "regulariser.name=taser", "regulariser.form=paired",
            "regulariser.fraction=0.25", "regulariser.every=2",
        ),
        "PGD-10 + form `paper` in `taser train`": lambda: in_training(
            workload, *PGD_10, "regulariser.name=taser", "regulariser.form=paper",
            "regulariser.backend=reverse",
        ),
    }  # fmt: skip


def peak(workload: Workload, name: str, threads: int) -> int:
    """Bytes of one step's peak, after a step on two examples has loaded what is loaded once."""
    torch.set_num_threads(threads)
    rows(replace(workload, batch=2))[name]()[0]()
    return peak_growth(rows(workload)[name]()[0])


def tables(result: dict[str, Any]) -> list[str]:
    """Time, and memory as far as it is measured."""
    times, peaks = result["times"], result["bytes"]
    names = list(next(iter(times.values())))

    def ratio(timing: dict[str, float] | None) -> str:
        if timing is None:
            return "–"
        low, high = timing["ratio_low"], timing["ratio_high"]
        return f"×{timing['ratio']:.2f} ({low:.2f}–{high:.2f})"

    return [
        markdown(
            ["step", *times],
            [[name, *(ratio(found.get(name)) for found in times.values())] for name in names],
            f"Time in steps of plain training: medians of {result['repetitions']} interleaved "
            f"repetitions with their range; {result['threads']} thread(s).",
        ),
        markdown(
            ["step", *peaks],
            [[name, *(f"{of[name] / 1e6:.0f}" for of in peaks.values())] for name in names],
            "Megabytes of resident memory that one step adds at its peak; they scatter by a tenth.",
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__, repetitions=15)
    options.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    given = options.parse_args(arguments)
    torch.set_num_threads(given.threads)
    result: dict[str, Any] = {
        **circumstances(), "repetitions": given.repetitions, "times": {}, "bytes": {}
    }  # fmt: skip
    chosen = [WORKLOADS[key] for key in given.workloads]
    for workload in chosen:
        steppers = {name: build() for name, build in rows(workload).items()}
        found = interleaved(steppers, given.repetitions)
        result["times"][workload.name] = {name: asdict(t) for name, t in found.items()}
        write(given.out, "two_lines", "What the two lines cost", result, tables(result))
        print(f"{workload.name}: time", flush=True)
    for workload in chosen:
        result["bytes"][workload.name] = {
            name: in_fresh_process(peak, workload, name, given.threads) for name in rows(workload)
        }
        write(given.out, "two_lines", "What the two lines cost", result, tables(result))
        print(f"{workload.name}: memory", flush=True)
    print(*tables(result), sep="\n")


if __name__ == "__main__":
    main()
