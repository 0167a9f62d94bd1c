"""TASER on a table: a classifier that holds when its measurements are off.

    python examples/tabular.py

Trains an MLP on scikit-learn's breast cancer data without and with TASER, and prints the accuracy
on test rows as they are and with every feature moved against it by up to ε standard deviations.
"""

import torch
import torch.nn.functional as F

import taser
from taser.attacks import PGD, Threat, margin

EPSILON = 0.5  # standard deviations of each feature
THREAT = Threat("linf", EPSILON, low=None, high=None)


def train(lam: float, epochs: int = 60) -> dict[str, float]:
    """Accuracy on the test part, clean and attacked, after training with weight `lam`."""
    torch.manual_seed(0)
    table = taser.data.load("breast-cancer")  # standardised by its training part
    model = taser.models.build(
        "mlp", classes=2, shape=table.input_shape, width=64, activation="silu"
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    score = taser.scores.Gaussian.fit(table.train.x).at(sigma=1.0)
    robust = taser.Taser(score, threat=THREAT)
    batches = taser.data.Batches(table.train, 64, seed=0)
    for _ in range(epochs):
        for x, y, *_ in batches:
            loss = F.cross_entropy(model(x), y) + lam * robust(model, x, y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    x, y = table.test.x, table.test.y
    attack = PGD(THREAT, steps=50, step_size=EPSILON / 10)
    moved = attack(model, x, y, loss=margin, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        right = {"clean": model(x).argmax(1) == y, "attacked": model(moved).argmax(1) == y}
    return {name: hits.float().mean().item() for name, hits in right.items()}


if __name__ == "__main__":
    for lam in (0.0, 0.1, 0.3, 1.0):
        result = train(lam)
        print(
            f"λ = {lam:<7g} accuracy {100 * result['clean']:.1f} %   "
            f"features off by {EPSILON:g} std: {100 * result['attacked']:.1f} %"
        )
