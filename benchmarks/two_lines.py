"""What the two lines of the README cost, beside adversarial training and a gradient penalty.

python benchmarks/two_lines.py --threads 1                     # time and peak memory
python benchmarks/two_lines.py --threads 1 --workloads 1 2     # of some workloads
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

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
    Workload("ViT, 0.8 M parameters", "vit", 128, (3, 32, 32), 32, "cifar10", 8 / 255),
    Workload("ResNet-18, width 16", "resnet18", 16, (3, 32, 32), 32, "cifar10", 8 / 255),
    Workload("ResNet-18, width 64", "resnet18", 64, (3, 32, 32), 32, "cifar10", 8 / 255),
]


class VisionTransformer(torch.nn.Module):
    """Patches of 4×4 pixels, four blocks with LayerNorm, the mean of the tokens to 10 classes."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, width, 4, stride=4)
        self.position = torch.nn.Parameter(0.02 * torch.randn(1, (side // 4) ** 2, width))
        block = torch.nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = torch.nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.blocks(tokens).mean(1))


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
    gradient = {
        name: taser.regularisers.GradientNorm("l1", **options)
        for name, options in (
            ("whole", {}), ("quarter", {"fraction": 0.25}), ("reverse", {"backend": "reverse"})
        )
    }  # fmt: skip
    fast = taser.objectives.Fast(taser.objectives.one_step_pgd(threat))
    pgd = {steps: taser.objectives.PGD(taser.attacks.PGD(threat, steps)) for steps in (3, 10)}

    def plain(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    def added(regulariser: taser.regularisers.Regulariser) -> Loss:
        return lambda model, x, y: plain(model, x, y) + 0.1 * regulariser(model, x, y)

    def attached(regulariser: taser.regularisers.Regulariser) -> Loss:
        def loss(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
            regulariser.attach(model)  # in each step, since the other losses share the model
            total = added(regulariser)(model, x, y)
            regulariser.release()
            return total

        return loss

    return {
        "plain": plain,
        "TASER, the two lines": attached(robust),
        "TASER, not attached": added(robust),
        "TASER, the whole batch": attached(whole),
        "TASER, form paper": added(paper),
        "‖∇m‖₁, a quarter of the batch": attached(gradient["quarter"]),
        "‖∇m‖₁, the whole batch": attached(gradient["whole"]),
        "‖∇m‖₁, by double backward": added(gradient["reverse"]),
        "one-step adversarial": fast,
        "PGD-3": pgd[3],
        "PGD-10": pgd[10],
    }


def steppers(workload: Workload) -> dict[str, Stepper]:
    """A training step with each loss, all on one network."""
    torch.manual_seed(0)
    x, y = torch.rand(workload.batch, *workload.shape), torch.randint(10, (workload.batch,))
    if workload.model == "vit":
        model: torch.nn.Module = VisionTransformer(workload.width, workload.shape[-1])
    else:
        model = taser.models.build(
            workload.model, classes=10, shape=workload.shape, width=workload.width,
            activation="silu",
        )  # fmt: skip
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)

    def stepper(loss: Loss) -> Stepper:
        def step() -> None:
            optimiser.zero_grad()
            loss(model, x, y).backward()
            optimiser.step()

        return step, 1

    return {name: stepper(loss) for name, loss in losses(workload, x).items()}


def peak(number: int, name: str, threads: int) -> int:
    """Bytes of one step's peak, after a step on two examples has loaded what is loaded once."""
    torch.set_num_threads(threads)
    steppers(replace(WORKLOADS[number], batch=2))[name][0]()
    return peak_growth(steppers(WORKLOADS[number])[name][0])


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
    memory = {
        WORKLOADS[i].name: {
            name: in_fresh_process(peak, i, name, arguments.threads) for name in names
        }
        for i in chosen
    }
    peaks = markdown(
        ["loss", *memory],
        [[name, *(f"{of[name] / 1e6:.0f}" for of in memory.values())] for name in names],
        "Megabytes of resident memory that one step adds at its peak; they scatter by a tenth.",
    )
    times = {work: {name: asdict(t) for name, t in of.items()} for work, of in found.items()}
    write(arguments.out, "two_lines", "What the two lines cost",
          {**circumstances(), "times": times, "bytes": memory}, [table, peaks])  # fmt: skip
    print(table, peaks, sep="\n")


if __name__ == "__main__":
    main()
