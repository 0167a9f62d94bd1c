"""What a shell shows of an object helps: no address, no wall of numbers, the figures to look at."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import taser
from taser import attacks, data, objectives, probes, regularisers, scores
from taser.evaluation import audit, undefended
from taser.training import read_recipe

X, Y = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 10


def public() -> Iterator[object]:
    """One of each class that a user creates."""
    digits, threat = data.load("digits"), attacks.Threat()
    yield from (digits, digits.train, data.CropAndFlip(), data.load("diabetes").standardisation)
    yield from data.DATASETS
    batches = data.Batches(digits.train, 64)
    yield from (batches, next(iter(batches)))
    gaussian, denoiser = scores.Gaussian.fit(X), scores.pretrained("digits")
    level = denoiser.at(timestep=50)
    yield from (gaussian, scores.GaussianMixture(torch.rand(5, 2), 0.5), denoiser, level)
    yield gaussian.at(sigma=0.5)
    yield from (scores.KernelDensity(X, 0.2), scores.from_edm(lambda x, _: x, 0.1))
    yield scores.Affine(gaussian, 2.0)
    yield scores.FitConfig()
    inner = attacks.PGD(threat)
    yield from (threat, inner, attacks.FGSM(), attacks.RestartedPGD(), attacks.SPSA())
    yield from (attacks.RandomNoise(), attacks.AutoAttackPart("square"))
    yield attacks.Transfer(attacks.FGSM(), nn.Linear(2, 2))
    yield attacks.autoattack(threat, classes=10)
    yield from (objectives.Standard(), objectives.PGD(inner), objectives.TRADES(6.0, inner))
    yield from (objectives.MART(5.0, inner), regularisers.GradientNorm())
    yield from (regularisers.Jacobian(), regularisers.Taser(level, threat=threat))
    yield objectives.Standard().loss(nn.Flatten(), X, Y, X)
    yield from (probes.Margin(), probes.Output(), probes.Logit(), taser.SteinPenalty())
    yield from (probes.Probed(nn.Linear(2, 2), probes.Margin(), Y), taser.SharedPass(nn.ReLU()))


EVERY = list(public())


@pytest.mark.parametrize("thing", EVERY, ids=[type(thing).__name__ for thing in EVERY])
def test_no_address_and_no_wall_of_numbers(thing: object) -> None:
    shown = repr(thing)
    assert " at 0x" not in shown
    assert "tensor([" not in shown
    assert len(shown) < 700
    assert type(thing).__name__ in shown


def test_results_show_their_figures() -> None:
    digits = data.load("digits")
    x, y = digits.train.x, digits.train.y
    model = undefended(x, y, 10, epochs=2, width=8)
    threat = attacks.Threat("linf", 0.2)
    result = taser.evaluate(model, x[:60], y[:60], threat=threat, attacks=("fgsm",))
    shown = repr(result)
    assert f"worst case {100 * result.robust_accuracy:.1f} %" in shown
    assert f"clean {100 * result.clean_accuracy:.1f} %" in shown
    assert repr(result.attacks["fgsm"]).startswith(f"Verdicts({int(result.robust.sum())} of 60")
    masked = nn.Sequential(model, nn.Softmax(1))
    found = audit(masked, x[:60], y[:60], threat=threat, steps=2, restarts=1, queries=2)
    assert repr(found).startswith("Audit(do not trust, ")
    assert "outputs are logits" in repr(found)


def test_configuration_shows_every_setting() -> None:
    assert "epsilon=0.15" in repr(read_recipe("digits/pgd", []))


def test_an_attack_shows_its_loss_by_name() -> None:
    assert repr(attacks.FGSM()).endswith("loss=cross_entropy, name='fgsm')")
    assert "surrogate=Linear, " in repr(attacks.Transfer(attacks.FGSM(), nn.Linear(2, 2)))
