"""TASER in a training loop of your own: two lines more than the plain loop.

    python examples/own_loop.py

Trains a small network on scikit-learn's digits twice, without and with the penalty, and prints
accuracy and the variance of the Stein residual on test images that neither has seen.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import taser


def digits() -> tuple[torch.Tensor, ...]:
    """Train and test images in [0, 1], (N, 64), and their labels."""
    x, y = load_digits(return_X_y=True)
    parts = train_test_split(x / 16.0, y, test_size=0.3, random_state=0, stratify=y)
    x_train, x_test = (torch.tensor(part, dtype=torch.float32) for part in parts[:2])
    return x_train, x_test, torch.tensor(parts[2]), torch.tensor(parts[3])


def train(lam: float, epochs: int = 40) -> dict[str, float]:
    """Accuracy and residual variance on the test set after training with weight `lam`."""
    torch.manual_seed(0)
    x, x_test, y, y_test = digits()
    model = nn.Sequential(
        nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 10)
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    score = taser.scores.Gaussian.fit(x)  # ∇log p of the training images
    penalty = taser.SteinPenalty()  # the first line

    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(128):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            if lam:
                loss = loss + lam * penalty(model, x[rows], y[rows], score(x[rows]))  # the second
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    judge = taser.SteinPenalty(backend="reverse", probes=16, unbiased=True).eval()
    with torch.no_grad():
        accuracy = (model(x_test).argmax(1) == y_test).float().mean()
        variance = judge(model, x_test, y_test, score(x_test))
    return {"accuracy": accuracy.item(), "variance": variance.item()}


if __name__ == "__main__":
    for lam in (0.0, 1e-5, 1e-4, 1e-3, 1e-2):
        result = train(lam)
        print(
            f"λ = {lam:<7g} accuracy {100 * result['accuracy']:.1f} %   "
            f"residual variance {result['variance']:.3g}"
        )
