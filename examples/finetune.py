"""Fine-tune a finished classifier with TASER, held near itself by a teacher.

    python examples/finetune.py

A network is trained on scikit-learn's digits as usual. Then a copy of it is trained on with
cross-entropy + α·KL(teacher ‖ student) + λ·TASER, where the teacher is the network as it was: it
keeps the answers while the penalty takes away sensitivity off the data. Printed are the accuracy on
test images, the same under PGD (a short attack, which flatters: `taser evaluate` for a figure to
quote), and how many answers are the teacher's. The λ shown were picked by looking at these test
images, so the gain is no evidence. On the command line this is `taser finetune`.
"""

from copy import deepcopy

import torch
from torch import nn

import taser
from taser.attacks import RestartedPGD, Threat
from taser.evaluation import undefended
from taser.objectives import Standard, teacher_kl

THREAT = Threat("linf", 0.1)


def finetune(model: nn.Module, lam: float, *, alpha: float = 1.0, epochs: int = 5) -> nn.Module:
    """A fine-tuned copy of the model, in evaluation mode."""
    torch.manual_seed(0)
    teacher, student = model.eval(), deepcopy(model).train()
    digits = taser.data.load("digits")
    optimiser = torch.optim.Adam(student.parameters(), lr=1e-3)
    objective = Standard()  # or objectives.PGD, TRADES, MART: the loop stays the same
    score = taser.scores.pretrained("digits").at(timestep=50)
    robust = taser.Taser(score, threat=THREAT)
    batches = taser.data.Batches(digits.train, 64, seed=0)
    for _ in range(epochs):
        for x, y, *_ in batches:
            moved = objective.attack(student, x, y)  # x itself, for Standard
            with taser.SharedPass(student) as shared:  # the penalty saves a forward
                loss = objective.loss(student, x, y, moved)
            shared.outputs = loss.clean
            with torch.no_grad():
                before = teacher(x)
            total = loss.total + alpha * teacher_kl(before, loss.clean)
            if lam:
                total = total + lam * robust(student, x, y, shared=shared)
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
    return student.eval()


def judge(model: nn.Module, teacher: nn.Module) -> dict[str, float]:
    """Accuracy on the test part, the same under PGD, and agreement with the teacher."""
    test = taser.data.load("digits").test
    attack = RestartedPGD(THREAT, steps=20, restarts=1)
    moved = attack(model, test.x, test.y, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        clean, attacked = model(test.x).argmax(1), model(moved).argmax(1)
        shares = {
            "clean": clean == test.y,
            "attacked": attacked == test.y,
            "agreement": clean == teacher(test.x).argmax(1),
        }
    return {name: hits.float().mean().item() for name, hits in shares.items()}


def finished(epochs: int = 10) -> nn.Module:
    """A classifier of digits, trained as usual: yours, in real life."""
    train = taser.data.load("digits").train
    return undefended(train.x, train.y, classes=10, epochs=epochs)


if __name__ == "__main__":
    model = finished()
    results = {"as it was": judge(model, model)}
    for lam in (0.0, 0.1, 0.3, 1.0):
        results[f"fine-tuned, λ = {lam:g}"] = judge(finetune(model, lam), model)
    for name, result in results.items():
        shown = "   ".join(f"{key} {100 * value:.1f} %" for key, value in result.items())
        print(f"{name:25} {shown}")
