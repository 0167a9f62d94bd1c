"""What the two lines of the README cost, beside adversarial training and a gradient penalty.

python benchmarks/two_lines.py --threads 1
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import taser
from measure import Stepper, circumstances, interleaved, markdown, parser, write


@dataclass(frozen=True)
class Workload:
    """A network, its inputs and the score of their data."""

    name: str
    model: str
    width: int
    shape: tuple[int, ...]
    batch: int
    score: str | None  # a shipped denoiser, or a Gaussian's score for a table
    epsilon: float


WORKLOADS = [
    Workload("MLP on a table", "mlp", 64, (30,), 64, None, 0.3),
    Workload("small CNN, 28×28", "cnn", 8, (1, 28, 28), 64, "fashion-mnist", 0.1),
    Workload("ResNet-18, width 16", "resnet18", 16, (3, 32, 32), 32, "cifar10", 8 / 255),
    Workload("ResNet-18, width 64", "resnet18", 64, (3, 32, 32), 32, "cifar10", 8 / 255),
]
Loss = Callable[[torch.nn.Module, Tensor, Tensor], Tensor]


def losses(workload: Workload, x: Tensor) -> dict[str, Loss]:
    """The loss of a step, by its name."""
    box = (0.0, 1.0) if workload.score else (None, None)
    threat = taser.Threat("linf", workload.epsilon, *box)
    if workload.score:
        score: taser.scores.NoisedScore = taser.scores.pretrained(workload.score).at(timestep=50)
    else:
        score = taser.scores.Gaussian.fit(x).at(sigma=1.0)
    robust = taser.Taser(score, threat=threat)
    whole = taser.Taser(score, threat=threat, fraction=1.0)
    paper = taser.Taser(score, threat=threat, form="paper", backend="reverse")
    gradient = taser.regularisers.GradientNorm("l1")
    pgd = {steps: taser.objectives.PGD(taser.attacks.PGD(threat, steps)) for steps in (1, 3, 10)}

    def plain(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    def added(regulariser: taser.regularisers.Regulariser) -> Loss:
        return lambda model, x, y: plain(model, x, y) + 0.1 * regulariser(model, x, y)

    def two_lines(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
        robust.attach(model)  # in each step, since the other losses share the model
        loss = added(robust)(model, x, y)
        robust.release()
        return loss

    return {
        "plain": plain,
        "TASER, the two lines": two_lines,
        "TASER, not attached": added(robust),
        "TASER, the whole batch": added(whole),
        "TASER, form paper": added(paper),
        "‖∇m‖₁": added(gradient),
        "one-step adversarial": pgd[1],
        "PGD-3": pgd[3],
        "PGD-10": pgd[10],
    }


def steppers(workload: Workload) -> dict[str, Stepper]:
    """A training step with each loss, all on one network."""
    torch.manual_seed(0)
    x, y = torch.rand(workload.batch, *workload.shape), torch.randint(10, (workload.batch,))
    model = taser.models.build(
        workload.model, classes=10, shape=workload.shape, width=workload.width, activation="silu"
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)

    def stepper(loss: Loss) -> Stepper:
        def step() -> None:
            optimiser.zero_grad()
            loss(model, x, y).backward()
            optimiser.step()

        return step, 1

    return {name: stepper(loss) for name, loss in losses(workload, x).items()}


def main() -> None:
    options = parser(__doc__, repetitions=15)
    options.add_argument("--workloads", nargs="*", type=int, help="numbers of the workloads")
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    chosen = range(len(WORKLOADS)) if arguments.workloads is None else arguments.workloads
    found = {
        WORKLOADS[i].name: interleaved(steppers(WORKLOADS[i]), arguments.repetitions)
        for i in chosen
    }
    names = list(next(iter(found.values())))
    rows = [
        [name, *(f"×{t[name].ratio:.2f} ({t[name].ratio_low:.2f}–{t[name].ratio_high:.2f})"
                 for t in found.values())]
        for name in names
    ]  # fmt: skip
    caption = (
        f"Steps of plain training: medians of {arguments.repetitions} interleaved repetitions "
        f"with their range; {arguments.threads} thread(s)."
    )
    table = markdown(["loss", *found], rows, caption)
    times = {work: {name: asdict(t) for name, t in of.items()} for work, of in found.items()}
    write(arguments.out, "two_lines", "What the two lines cost",
          {**circumstances(), "times": times}, [table])  # fmt: skip
    print(table)


if __name__ == "__main__":
    main()
