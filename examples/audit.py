"""Audit a model that somebody handed you: is its robustness real, or are its gradients hidden?

    python examples/audit.py

Two classifiers of scikit-learn's digits have the same weights. The second rounds its input to four
grey levels first, which stops gradients and hardly anything else: under PGD alone it looks robust.
The audit says "trust" of the first, which is not robust but honest about it, and "do not trust" of
the second, with the checks that gave it away. On the command line this is `taser audit`, whose exit
code is 3 for "do not trust".
"""

import torch
from torch import Tensor, nn

import taser
from taser.attacks import RestartedPGD, Threat
from taser.evaluation import Audit, audit, undefended

THREAT = Threat("linf", 0.15)


class Quantised(nn.Module):
    """A network behind an input of four grey levels: (B, 1, 8, 8) → (B, 10)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network((4 * x).round() / 4)


def models(epochs: int = 5) -> dict[str, nn.Module]:
    """The honest network and the same one with hidden gradients."""
    digits = taser.data.load("digits")
    honest = undefended(digits.train.x, digits.train.y, classes=10, epochs=epochs)
    return {"honest": honest, "quantised": Quantised(honest).eval()}


def claimed(model: nn.Module, examples: int = 100) -> float:
    """The accuracy under PGD on cross-entropy, which is what a paper might report."""
    test = taser.data.load("digits").test
    attack = RestartedPGD(THREAT, steps=20, restarts=1, loss=taser.attacks.cross_entropy)
    x, y = test.x[:examples], test.y[:examples]
    moved = attack(model, x, y, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return float((model(moved).argmax(1) == y).float().mean())


def ask(model: nn.Module, examples: int = 100, queries: int = 100) -> Audit:
    """A short audit; leave steps, restarts and queries at their defaults for one to quote."""
    digits = taser.data.load("digits")
    surrogate = undefended(digits.train.x, digits.train.y, classes=10, seed=1)
    x, y = digits.test.x[:examples], digits.test.y[:examples]
    return audit(
        model, x, y, threat=THREAT, surrogate=surrogate, steps=20, restarts=2, queries=queries
    )


if __name__ == "__main__":
    for name, model in models().items():
        print(f"{name}: {100 * claimed(model):.0f} % right under PGD, as it might be claimed")
        result = ask(model)
        print(f"  verdict: {result.verdict}")
        for check in result.failed:
            print(f"  failed: {check.name} ({check.figure})")
