"""A network with noise at its input gets the number of the network without it."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import taser
from taser.attacks import PGD, Averaged, RestartedPGD, Threat
from taser.attacks._random_models import Votes
from taser.data import load

THREAT = Threat("linf", 0.1)


class Noisy(nn.Module):
    """Gaussian noise at the input, also in eval mode."""

    def __init__(self, net: nn.Module, sigma: float = 0.05) -> None:
        super().__init__()
        self.net, self.sigma = net, sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + self.sigma * torch.randn_like(x))


@functools.cache
def trained() -> Noisy:
    """A small network on digits, trained with its noise against PGD."""
    train = load("digits").train
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        noisy = Noisy(nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(128, 10),
        ))  # fmt: skip
        optimiser, attack = torch.optim.Adam(noisy.parameters(), 0.01), PGD(THREAT, 3)
        for step in range(150):
            x = attack(noisy, train.x, train.y) if step >= 30 else train.x
            optimiser.zero_grad()
            F.cross_entropy(noisy(x), train.y).backward()
            optimiser.step()
    return noisy.eval()


def test_noise_at_the_input_is_worth_less_than_two_points() -> None:
    test, noisy = load("digits").test, trained()
    attacks = [RestartedPGD(THREAT, 20, 1)]
    plain, averaged, single = (
        taser.evaluate(m, test.x, test.y, threat=THREAT, attacks=attacks, n=400, eot=eot)
        for m, eot in ((noisy.net, None), (noisy, None), (noisy, 1))
    )
    assert averaged.robust_accuracy == pytest.approx(plain.robust_accuracy, abs=0.02)
    assert single.robust_accuracy > averaged.robust_accuracy + 0.05  # what one draw would claim
    (finding,) = (f.message for f in averaged.findings if f.name == "stochastic")
    assert "averaged 20 draws" in finding
    assert "could be otherwise" in finding
    assert not [f for f in plain.findings if f.name == "stochastic"]


def test_apgd_takes_it_and_the_record_is_the_same_again() -> None:
    test, noisy = load("digits").test, trained()
    once, again = (
        taser.evaluate(
            noisy, test.x[:20], test.y[:20], threat=THREAT, attacks=["apgd-ce"], eot=3, seed=1
        )
        for _ in range(2)
    )
    assert torch.equal(once.robust, again.robust)
    assert once.x_adv is not None
    assert torch.equal(once.x_adv, again.x_adv)


def test_the_average_has_less_noise_and_votes_are_shares() -> None:
    noisy, x = trained(), load("digits").test.x[:5]
    torch.manual_seed(0)
    with torch.no_grad():
        ones = torch.stack([noisy(x) for _ in range(400)])
        means = torch.stack([Averaged(noisy, 16)(x) for _ in range(400)])
    ratio = float((means.var(0) / ones.var(0)).mean())
    assert ratio == pytest.approx(1 / 16, rel=0.1)  # 50 variances, each to √(2/400)·√2 = 10 %
    votes = Votes(noisy, 10)(x)
    torch.testing.assert_close(votes.sum(1), torch.ones(5))
    with pytest.raises(ValueError, match="draws should be at least 1"):
        Averaged(noisy, 0)


def test_a_curve_averages_too() -> None:
    test, noisy = load("digits").test, trained()
    curve = taser.evaluation.accuracy_curve(
        noisy, test.x[:40], test.y[:40], threat=THREAT, factors=(1.0,),
        attack=lambda t: RestartedPGD(t, 5, 1),
    )  # fmt: skip
    assert curve.accuracies[1] < curve.accuracies[0]
