import pytest
import torch

from identity_cases import (
    DETECTED,
    Z,
    covariance,
    gaussian,
    generator,
    mixture,
    network,
    normal,
    quadratic,
)
from taser.scores import Gaussian
from theorems import compare, gaussian_shift, projection_identity


@pytest.mark.parametrize("d", [1, 2, 50])
def test_normal_that_has_moved(d):
    p = gaussian(d)
    x = p.mean.clone().requires_grad_()
    (uphill,) = torch.autograd.grad(network(d)(x[None]).sum(), x)
    shift = gaussian_shift(p, uphill / uphill.norm())
    x = shift.q.sample(10_000, generator())
    g, options = shift.grad_log_ratio(x), {"generator": generator(), "batch": 10_000}
    found = projection_identity(network(d), x, shift.p(x), g, **options)
    assert found.holds(z=Z)
    assert abs(found.left.z) > DETECTED  # there is something to agree on
    wrong = projection_identity(network(d), x, 1.3 * shift.p(x), g, **options)
    assert abs(wrong.difference.z) > DETECTED


@pytest.mark.parametrize("backend", ["reverse", "exact"])
@pytest.mark.parametrize("d", [1, 2, 50])
def test_any_two_laws(d, backend):
    p, q = gaussian(d), mixture(d)
    x = q.sample(4000 if d == 50 else 20_000, generator())
    options = {"backend": backend, "generator": generator(), "batch": len(x)}
    found = projection_identity(network(d), x, p(x), q(x) - p(x), **options)
    assert found.holds(z=Z)
    wrong = projection_identity(network(d), x, p(x), 1.3 * q(x) - p(x), **options)
    assert abs(wrong.difference.z) > DETECTED


@pytest.mark.parametrize("d", [1, 2, 50])
def test_closed_form_of_a_quadratic(d):
    """E_q[L_p f] = −δᵀΣ⁻¹(Aδ + b) for f = ½xᵀAx + bᵀx, p = N(0, Σ) and q = N(δ, Σ)."""
    (f, a, b), delta = quadratic(d), normal(d, seed=3) / d**0.5
    shift = gaussian_shift(Gaussian(torch.zeros_like(delta), covariance(d)), delta)
    x = shift.q.sample(10_000, generator())
    found = projection_identity(
        f, x, shift.p(x), shift.grad_log_ratio(x), backend="exact", batch=10_000
    )
    expected = -float(shift.pull @ (a @ delta + b))
    assert found.left.consistent_with(expected, z=Z)
    assert found.right.consistent_with(expected, z=Z)


def test_bad_inputs():
    p, f = gaussian(2), network(2)
    x = p.sample(50, generator())
    with pytest.raises(ValueError, match=r"grad_log_ratio should have the shape of x, \(50, 2\)"):
        projection_identity(f, x, p(x), p(x)[0])
    with pytest.raises(ValueError, match="shape and device of x"):
        projection_identity(f, x, p(x)[:, :1], p(x))
    with pytest.raises(ValueError, match="at least two samples"):
        projection_identity(f, x[:1], p(x[:1]), p(x[:1]))


def test_paired_difference_is_sharper_than_the_sides():
    left = normal(1000)
    sides = compare(left, left + 0.01 * normal(1000, seed=1))
    assert sides.difference.stderr < 0.05 * sides.left.stderr
    assert sides.holds()
    assert not compare(left, left + 0.01).holds()
    assert "difference" in str(sides)
