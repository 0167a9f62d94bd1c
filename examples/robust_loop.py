"""Robust training in a loop of your own: the form of TASER that did best in our studies.

    python examples/robust_loop.py

Trains a small network on scikit-learn's digits twice, without and with two lines, and attacks both.
"""

import torch
import torch.nn.functional as F

import taser

THREAT = taser.attacks.Threat("linf", 0.15)


def train(lam: float, epochs: int = 20) -> dict[str, float]:
    """Clean and attacked accuracy on the test images after training with weight `lam`."""
    torch.manual_seed(0)
    digits = taser.data.load("digits")
    model = taser.models.build("cnn", classes=10, shape=(1, 8, 8), width=16, activation="silu")
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    score = taser.scores.pretrained("digits").at(timestep=50)  # a denoiser of the training images
    robust = taser.Taser(score, threat=THREAT).attach(model)  # the first line

    batches = taser.data.Batches(digits.train, 32)
    for _ in range(epochs):
        for x, y, *_ in batches:
            loss = F.cross_entropy(model(x), y)
            if lam:
                loss = loss + lam * robust(model, x, y)  # the second
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    attacks = ("apgd-ce", "apgd-t")
    result = taser.evaluate(model, digits.test.x, digits.test.y, threat=THREAT, attacks=attacks)
    return {"clean": result.clean_accuracy, "attacked": result.robust_accuracy}


if __name__ == "__main__":
    for lam in (0.0, 0.3):
        result = train(lam)
        print(
            f"λ = {lam:<4g} clean {100 * result['clean']:.1f} %   "
            f"attacked {100 * result['attacked']:.1f} %"
        )
