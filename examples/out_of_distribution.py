"""Out-of-distribution detection by a score, the Stein residual and the usual statistics.

    python examples/out_of_distribution.py

A small network learns scikit-learn's digits. Out-of-distribution inputs are made of one half of the
test images: shuffled pixels, noise added, inverted grey. Each statistic gets the area under its ROC
curve against the other half: 1 is perfect, 0.5 is guessing. The norm of the score alone, ‖s(x)‖,
which needs no network, does better than the Stein residual here, as it did in docs/audit.md: take
the norm as a detector, and the residual as a diagnosis of network and score together.
"""

import torch

import taser
from taser.evaluation import out_of_distribution, undefended

SHOWN = ("score norm", "Stein residual, centred", "first-order residual, centred", "energy",
         "max softmax")  # fmt: skip


def perturbed(x: torch.Tensor, seed: int = 0) -> dict[str, torch.Tensor]:
    """Inputs that are not digits any more, of x, (n, 1, 8, 8), each like x."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(x.flatten(1).shape, generator=generator).argsort(1)
    noise = 0.2 * torch.randn(x.shape, generator=generator)
    return {
        "shuffled pixels": x.flatten(1).gather(1, order).view_as(x),
        "noise added": (x + noise).clamp(0, 1),
        "inverted": 1 - x,
    }


def detect(epochs: int = 5) -> dict[str, dict[str, float]]:
    """The AUROC of every statistic against every kind of perturbed inputs."""
    digits = taser.data.load("digits")
    model = undefended(digits.train.x, digits.train.y, classes=10, epochs=epochs)
    score = taser.scores.pretrained("digits").at(timestep=50)
    half = len(digits.test) // 2
    result = out_of_distribution(
        model,
        score,
        digits.test.x[:half],
        perturbed(digits.test.x[half:]),
        reference=digits.train.x[:500],  # where the mean of the residual is taken
    )
    table: dict[str, dict[str, float]] = {}
    for found in result.detections:
        table.setdefault(found.against, {})[found.statistic] = found.auroc.value
    return table


if __name__ == "__main__":
    table = detect()
    print(f"{'AUROC':32}" + "".join(f"{against:>18}" for against in table))
    for statistic in SHOWN:
        print(f"{statistic:32}" + "".join(f"{found[statistic]:18.3f}" for found in table.values()))
