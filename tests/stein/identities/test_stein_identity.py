import math

import pytest
import torch
from torch import nn

from identity_cases import DETECTED, Z, densities, draws, generator, mixture, network, silu_network
from taser.probes import Margin, Probed
from taser.scores import Gaussian
from taser.stein import UnsupportedLayer
from taser.stein.identities import Estimate, stein_identity


@pytest.mark.parametrize("make", [network, silu_network])
@pytest.mark.parametrize("density", densities())
@pytest.mark.parametrize("backend", ["reverse", "exact"])
def test_zero_for_the_right_score_and_not_for_another(density, make, backend):
    f, (x, s) = make(density.dim), draws(density)
    options = {"backend": backend, "batch": len(x)}
    assert stein_identity(f, x, s, generator=generator(), **options).consistent_with(0, z=Z)
    scaled = stein_identity(f, x, 1.3 * s, generator=generator(), **options)
    assert abs(scaled.z) > DETECTED


@pytest.mark.parametrize("d", [1, 2, 50])
def test_the_log_ratio_of_two_laws_finds_the_fisher_divergence_between_them(d):
    density = mixture(d)
    x, s = draws(density, 4000)
    # Mean and covariance are about right, the shape is not. Other draws, or f would depend on x.
    wrong = Gaussian.fit(density.sample(4000, generator(1)))

    def f(x):
        return density.log_prob(x) - wrong.log_prob(x)

    options = {"generator": generator(), "batch": 4000}
    assert stein_identity(f, x, s, **options).consistent_with(0, z=Z)
    found = stein_identity(f, x, wrong(x), **options)
    assert abs(found.z) > DETECTED
    fisher = Estimate.of((s - wrong(x)).square().sum(1))
    assert found.consistent_with(-fisher.value, z=Z)


def test_more_probes_leave_less_noise():
    x, s = draws(mixture(50), 2000)
    one, many, every = (
        stein_identity(network(50), x, s, generator=generator(), **options).stderr
        for options in ({"probes": 1}, {"probes": 20}, {"backend": "exact"})
    )
    assert every < many < one


def test_batches_change_nothing():
    x, s = draws(mixture(2), 101)
    whole = stein_identity(network(2), x, s, backend="exact", batch=101)
    parts = stein_identity(network(2), x, s, backend="exact", batch=10)
    assert parts.value == pytest.approx(whole.value, rel=1e-12)
    assert parts.n == 101


def test_labels_of_a_probed_model_follow_their_rows():
    x, s = draws(mixture(2), 60)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    f = Probed(model, Margin(), torch.arange(60) % 3)
    whole = stein_identity(f, x, s, backend="exact", batch=60)
    parts = stein_identity(f, x, s, backend="exact", batch=7)
    assert parts.value == pytest.approx(whole.value, rel=1e-12)


def test_a_kink_hides_its_laplacian_from_derivatives_but_not_from_differences():
    x = torch.randn(100_000, 1, generator=generator(), dtype=torch.float64)

    def f(x):
        return x.abs().sum(1)

    blind = stein_identity(f, x, -x, backend="reverse", batch=100_000)
    assert blind.consistent_with(-math.sqrt(2 / math.pi), z=Z)  # E[−x·sign x]; Δf is missing
    seeing = stein_identity(f, x, -x, backend="difference", step=0.03, batch=100_000)
    assert seeing.consistent_with(0, z=Z)
    assert abs(blind.z) > 10 * abs(seeing.z)


def test_it_leaves_no_graph_and_no_gradient():
    x, s = draws(mixture(2), 50)
    model = nn.Linear(2, 1).double()
    stein_identity(lambda x: model(x).squeeze(1).sin(), x, s)
    assert model.weight.grad is None
    assert not x.requires_grad


def test_bad_inputs():
    x, s = draws(mixture(2), 50)
    f = network(2)
    with pytest.raises(ValueError, match="shape and device of x"):
        stein_identity(f, x, s[:40])
    with pytest.raises(ValueError, match="at least two samples; x has 1"):
        stein_identity(f, x[:1], s[:1])
    with pytest.raises(ValueError, match="batch should be a whole number of at least 1; got 0"):
        stein_identity(f, x, s, batch=0)
    with pytest.raises(ValueError, match="one number per example"):
        stein_identity(lambda x: x, x, s)
    with pytest.raises(ValueError, match="one label for each of the 50 rows"):
        stein_identity(Probed(lambda x: x, Margin(), torch.zeros(25).long()), x, s)
    with pytest.raises(ValueError, match="backend should be one of"):
        stein_identity(f, x, s, backend="forward")
    with pytest.raises(UnsupportedLayer, match="couples the examples"):
        stein_identity(nn.Sequential(nn.BatchNorm1d(2), nn.Flatten(0)).double(), x, s)
