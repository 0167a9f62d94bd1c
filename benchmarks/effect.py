"""What `fraction`, `every` and the denoiser do to robust accuracy, and in how much time.

python benchmarks/effect.py --data digits --seeds 0 1
python benchmarks/effect.py --data fashion-mnist --scores fashion-mnist other.safetensors

A short training with the two lines for each setting, PGD-40 on the test images, and the processor's
seconds of the training, which other work on the machine changes little.
"""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import taser
from measure import markdown, parser, write
from taser.data._dataset import subset

SETTINGS = ((0.25, 1), (0.25, 2), (0.34, 2), (0.5, 2))  # fraction, every


@dataclass(frozen=True)
class Task:
    """A small CNN and its training."""

    shape: tuple[int, ...]
    width: int
    batch: int
    epochs: int
    epsilon: float
    examples: int
    tested: int


TASKS = {
    "digits": Task((1, 8, 8), 16, 32, 20, 0.15, 1295, 359),
    "fashion-mnist": Task((1, 28, 28), 8, 64, 8, 0.1, 4000, 1000),
}


@dataclass(frozen=True)
class Outcome:
    """Accuracies in per cent, and seconds of the training."""

    data: str
    score: str
    fraction: float
    every: int
    weight: float
    seed: int
    clean: float
    robust: float
    seconds: float


def run(
    data: str, score: str, fraction: float, every: int, seed: int, weight: float = 0.3,
    task: Task | None = None,
) -> Outcome:  # fmt: skip
    """Train with λ = weight and attack the test images."""
    torch.manual_seed(seed)
    task, dataset = task or TASKS[data], taser.data.load(data)
    rows = subset(len(dataset.train), task.examples)
    train = dataset.train.rows(rows), dataset.train.y[rows]
    model = taser.models.build(
        "cnn", classes=10, shape=task.shape, width=task.width, activation="silu"
    )
    optimiser = torch.optim.Adam(model.parameters())
    threat = taser.Threat("linf", task.epsilon)
    denoiser = taser.scores.named(score).at(timestep=50)
    robust = taser.Taser(denoiser, threat=threat, fraction=fraction, every=every, seed=seed)
    robust.attach(model)
    batches = taser.data.Batches(train, task.batch, seed=seed)
    steps, begun = task.epochs * len(batches), time.process_time()
    for epoch in range(task.epochs):
        for number, (x, y, _) in enumerate(batches):
            for group in optimiser.param_groups:
                group["lr"] = 3e-3 * (1 - (epoch * len(batches) + number) / steps)
            loss = F.cross_entropy(model(x), y) + weight * robust(model, x, y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    seconds = time.process_time() - begun
    model.eval()
    tested = subset(len(dataset.test), task.tested)
    x, y = dataset.test.rows(tested), dataset.test.y[tested]
    moved = taser.attacks.PGD(threat, 40)(model, x, y, generator=torch.Generator().manual_seed(0))

    def accuracy(points: Tensor) -> float:
        with torch.no_grad():
            return 100 * float((model(points).argmax(1) == y).float().mean())

    return Outcome(
        data, Path(score).stem, fraction, every, weight, seed, accuracy(x), accuracy(moved), seconds
    )


def table(outcomes: Iterable[Outcome]) -> str:
    """A row for each setting, the means over its seeds."""
    groups: dict[tuple, list[Outcome]] = {}
    for o in outcomes:
        groups.setdefault((o.data, o.score, o.fraction, o.every, o.weight), []).append(o)
    return markdown(
        ["data", "denoiser", "fraction", "every", "λ", "seeds", "clean", "PGD-40", "CPU s"],
        [
            [*map(str, key), str(len(of)), f"{mean(o.clean for o in of):.1f}",
             f"{mean(o.robust for o in of):.1f}", f"{mean(o.seconds for o in of):.1f}"]
            for key, of in groups.items()
        ],
        "Per cent of the test images (digits 359, Fashion-MNIST 1000), means over seeds.",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument("--data", choices=TASKS, default="digits")
    options.add_argument(
        "--scores", nargs="+", help="shipped denoisers or files; by default its own"
    )
    options.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    given = options.parse_args(arguments)
    torch.set_num_threads(given.threads)
    path = given.out / "effect.json"
    kept: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    for seed in given.seeds:
        for score in given.scores or [given.data]:
            for fraction, every in SETTINGS:
                kept.append(asdict(run(given.data, score, fraction, every, seed)))
                text = table(Outcome(**one) for one in kept)
                write(given.out, "effect", "Effect of what is left out", kept, [text])
    print(text)


if __name__ == "__main__":
    main()
