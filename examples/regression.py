"""TASER for regression: the output itself is the probe.

    python examples/regression.py

Trains an MLP on scikit-learn's diabetes data without and with TASER, and prints the mean squared
error on test rows (of standardised targets: 1 is the error of guessing the mean), as they are and
with every feature moved against the model by up to ε standard deviations.
"""

import torch

import taser
from taser.attacks import PGD, Threat, squared_error

EPSILON = 0.3
THREAT = Threat("linf", EPSILON, low=None, high=None)


def train(lam: float, epochs: int = 60) -> dict[str, float]:
    """Mean squared error on the test part, clean and attacked, after training with `lam`."""
    torch.manual_seed(0)
    table = taser.data.load("diabetes")
    model = taser.models.build(
        "mlp", classes=None, shape=table.input_shape, width=64, activation="silu"
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    score = taser.scores.Gaussian.fit(table.train.x).at(sigma=1.0)
    robust = taser.Taser(score, threat=THREAT, probe=taser.probes.Output())
    batches = taser.data.Batches(table.train, 64, seed=0)
    for _ in range(epochs):
        for x, y, *_ in batches:
            loss = squared_error(model(x), y).mean() + lam * robust(model, x, None)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    x, y = table.test.x, table.test.y
    attack = PGD(THREAT, steps=50, step_size=EPSILON / 10)
    generator = torch.Generator().manual_seed(0)
    moved = attack(model, x, y, loss=squared_error, generator=generator)
    with torch.no_grad():
        errors = {"clean": squared_error(model(x), y), "attacked": squared_error(model(moved), y)}
    return {name: error.mean().item() for name, error in errors.items()}


if __name__ == "__main__":
    for lam in (0.0, 0.3, 1.0, 3.0):
        result = train(lam)
        print(
            f"λ = {lam:<7g} error {result['clean']:.3f}   "
            f"features off by {EPSILON:g} std: {result['attacked']:.3f}"
        )
