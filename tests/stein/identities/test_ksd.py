import math
from functools import partial

import pytest
import torch

from identity_cases import DETECTED, Z, draws, gaussian, generator, mixture, normal
from taser.stein.identities import (
    Estimate,
    inverse_multiquadric,
    ksd,
    ksd_test,
    radial_basis,
    stein_kernel,
)

KERNELS = {"imq": inverse_multiquadric, "rbf": radial_basis}
both_kernels = pytest.mark.parametrize("kernel", ["imq", "rbf"])


@both_kernels
def test_statistics_against_a_double_loop(kernel):
    x, s = normal(7, 3), normal(7, 3, seed=1)
    base = partial(KERNELS[kernel], c=0.7)
    u = v = 0.0
    for i in range(7):
        for j in range(7):
            pair = float(stein_kernel(base, x[i : i + 1], s[i : i + 1], x[j : j + 1], s[j : j + 1]))
            u += pair / (7 * 6) if i != j else 0.0
            v += pair / 7**2
    assert ksd(x, s, kernel=kernel, bandwidth=0.7, statistic="u") == pytest.approx(u)
    assert ksd(x, s, kernel=kernel, bandwidth=0.7, statistic="v") == pytest.approx(v)


@both_kernels
def test_bandwidth_is_the_median_distance(kernel):
    x, s = draws(mixture(2), 40)
    distances = [float((x[i] - x[j]).norm()) for i in range(40) for j in range(i)]
    median = sorted(distances)[(len(distances) - 1) // 2]
    found = ksd_test(x, s, kernel=kernel, bootstrap=1)
    assert found.bandwidth == pytest.approx(median)
    assert found.statistic == pytest.approx(ksd(x, s, kernel=kernel, bandwidth=median))


@pytest.mark.parametrize("statistic", ["u", "v"])
def test_blocks_of_rows_change_nothing(statistic, monkeypatch):
    x, s = draws(mixture(3), 50)
    whole = ksd(x, s, statistic=statistic)
    whole_test = ksd_test(x, s, bootstrap=50, generator=generator())
    monkeypatch.setattr("taser.stein.identities.ENTRIES", 50 * 7)
    assert ksd(x, s, statistic=statistic) == pytest.approx(whole)
    parts = ksd_test(x, s, bootstrap=50, generator=generator())
    assert parts.statistic == pytest.approx(whole_test.statistic)
    assert parts.p_value == whole_test.p_value


@both_kernels
@pytest.mark.parametrize("density", [gaussian(1), mixture(2), mixture(50)])
def test_zero_for_right_samples_and_not_for_wrong_ones(density, kernel):
    def repeat(move):
        samples = [density.sample(200, generator(seed)) for seed in range(40)]
        values = [ksd(x, density(x - move), kernel=kernel) for x in samples]
        return Estimate.of(torch.tensor(values))

    assert repeat(0.0).consistent_with(0, z=Z)
    assert repeat(0.5).z > DETECTED


@both_kernels
def test_it_is_a_distance_between_scores(kernel):
    """KSD² = E_q[δ(x)ᵀ k(x, x') δ(x')], δ = s_p − s_q the difference of the scores."""
    p, q = gaussian(2), mixture(2)
    gaps = []
    for seed in range(60):
        x, _ = draws(q, 100, seed)
        delta, k = p(x) - q(x), KERNELS[kernel](torch.cdist(x, x).square(), 1.0)[0]
        pairs = (k * (delta @ delta.T)).fill_diagonal_(0)
        gaps.append(ksd(x, p(x), kernel=kernel, bandwidth=1.0) - float(pairs.sum()) / (100 * 99))
    assert Estimate.of(torch.tensor(gaps)).consistent_with(0, z=Z)


def test_v_is_never_negative_and_shrinks_with_more_samples():
    few, many = (ksd(*draws(mixture(2), n), statistic="v") for n in (50, 500))
    assert 0 < many < 0.2 * few


@both_kernels
def test_where_the_samples_lie_does_not_matter(kernel):
    x, s = draws(mixture(3), 100)
    moved = ksd(x + 1e4, s, kernel=kernel)
    assert moved == pytest.approx(ksd(x, s, kernel=kernel), rel=1e-8)


def test_images_and_float32():
    x, s = draws(mixture(12), 60)
    images = ksd(x.view(60, 3, 2, 2).float(), s.view(60, 3, 2, 2).float())
    assert images == pytest.approx(ksd(x, s), rel=1e-4, abs=1e-6)


@both_kernels
def test_bootstrap_against_its_formula(kernel):
    x, s = draws(gaussian(2), 30)
    found = ksd_test(x, s, kernel=kernel, bandwidth=1.0, bootstrap=99, generator=generator())
    matrix = stein_kernel(partial(KERNELS[kernel], c=1.0), x, s, x, s).fill_diagonal_(0) / (30 * 29)
    signs = torch.randint(0, 2, (100, 30), generator=generator()).double()[1:] * 2 - 1
    null = torch.einsum("bi,ij,bj->b", signs, matrix, signs)
    assert found.statistic == pytest.approx(float(matrix.sum()))
    assert found.p_value == pytest.approx((1 + int((null >= matrix.sum()).sum())) / 100)


@both_kernels
@pytest.mark.parametrize("density", [gaussian(1), mixture(2), gaussian(50)])
def test_p_values_are_uniform_for_right_samples(density, kernel):
    p_values = torch.tensor(
        [
            ksd_test(
                *draws(density, 100, seed), kernel=kernel, bootstrap=200, generator=generator(seed)
            ).p_value
            for seed in range(100)
        ]
    )
    assert float((p_values <= 0.05).float().mean()) <= 0.12
    assert float((p_values <= 0.5).float().mean()) == pytest.approx(0.5, abs=Z * 0.05)
    assert Estimate.of(p_values).consistent_with(0.5, z=Z)


@both_kernels
@pytest.mark.parametrize("d", [1, 2, 50])
def test_wrong_samples_are_rejected(d, kernel):
    p = gaussian(d)
    rejected = 0
    for seed in range(20):
        x = p.sample(100, generator(seed)) + 0.8 / math.sqrt(d)
        found = ksd_test(x, p(x), kernel=kernel, bootstrap=200, generator=generator(seed))
        rejected += found.p_value <= 0.05
    assert rejected >= 18


def test_the_smallest_p_value():
    x, s = draws(gaussian(2), 200)
    assert ksd_test(x, 5 * s, bootstrap=99, generator=generator()).p_value == pytest.approx(0.01)


def test_bad_inputs():
    x, s = draws(gaussian(2), 20)
    with pytest.raises(ValueError, match="kernel should be one of 'imq', 'rbf'; got 'linear'"):
        ksd(x, s, kernel="linear")
    with pytest.raises(ValueError, match="statistic should be one of 'u', 'v'; got 'w'"):
        ksd(x, s, statistic="w")
    with pytest.raises(ValueError, match="bandwidth should be one of 'median'"):
        ksd(x, s, bandwidth="mean")
    with pytest.raises(ValueError, match="bandwidth should be positive and finite; got 0"):
        ksd(x, s, bandwidth=0)
    with pytest.raises(ValueError, match="at least two samples; x has 1"):
        ksd(x[:1], s[:1])
    with pytest.raises(ValueError, match="shape and device of x"):
        ksd(x, s[:10])
    with pytest.raises(ValueError, match="half of the samples coincide"):
        ksd(torch.ones_like(x), s)
    with pytest.raises(ValueError, match="bootstrap should be at least 1; got 0"):
        ksd_test(x, s, bootstrap=0)
