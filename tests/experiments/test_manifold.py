"""The manifold study: its geometry, its measurements, its matching, and what a quick run finds."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import manifold
from curve import Curve, normal, split
from manifold import (
    METHODS,
    ON_CURVE,
    PLAIN,
    QUICK,
    Sample,
    Sensitivity,
    Settings,
    at_level,
    common_levels,
    margin_gradient,
    measure,
)

CURVE = Curve.sine(0.4)
TINY = Settings(seeds=(3,), strengths=(0.01, 0.1), examples=64, steps=3, batch=16, width=8)


@pytest.fixture(scope="module")
def quick():
    study, _, _ = manifold.run(QUICK)
    return study


def linear(*weights):
    """A classifier with z_1 − z_0 = weights·(x, 1) and z_0 = 0."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0], weights[:2]]))
        model.bias.copy_(torch.tensor([0.0, weights[2]]))
    return model


def test_split_is_orthogonal_and_sums_to_the_gradient():
    gradient = torch.randn(len(CURVE.points), 2, generator=torch.Generator().manual_seed(0))
    along, across = split(gradient, CURVE.tangents)
    torch.testing.assert_close(along + across, gradient)
    torch.testing.assert_close(
        (along * across).sum(1), torch.zeros(len(gradient)), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        (across * normal(CURVE.tangents)).sum(1).abs(), across.norm(dim=1), atol=1e-5, rtol=1e-5
    )


def test_tangents_point_to_the_next_point_and_arc_measures_the_way():
    step = CURVE.points.double().diff(dim=0)
    cosine = (step * CURVE.tangents[:-1]).sum(1) / step.norm(dim=1)
    assert float(cosine.min()) > 0.999
    assert float(CURVE.arc[-1]) == pytest.approx(float(step.norm(dim=1).sum()), rel=1e-4)


def test_score_points_back_along_the_normal_off_the_middle_of_the_curve():
    sigma = 0.05
    middle = torch.arange(300, 901, 20)  # away from the ends, where the density falls off
    across = normal(CURVE.tangents[middle])
    for side in (-1.0, 1.0):
        s = CURVE.blurred(sigma)(CURVE.points[middle] + side * sigma * across)
        cosine = (s * -side * across).sum(1) / s.norm(dim=1)
        assert float(cosine.min()) > math.cos(math.radians(3))
        # On the inner side of a bend of radius R: 1/σ to within about σ/R.
        torch.testing.assert_close(
            s.norm(dim=1) * sigma, torch.ones(len(middle)), atol=0.25, rtol=0
        )


def test_score_is_the_gradient_of_the_log_density():
    density = CURVE.blurred(0.05)
    x = density.sample(200, torch.Generator().manual_seed(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(density.log_prob(x).sum(), x)
    torch.testing.assert_close(density(x.detach()), gradient, atol=1e-2, rtol=1e-3)


def test_noise_too_thin_for_the_points_raises():
    with pytest.raises(ValueError, match="falls into beads; got"):
        CURVE.blurred(0.001)


def test_classes_take_turns_and_room_is_the_way_to_the_next():
    segment, room = CURVE.segment(CURVE.points, 4), CURVE.room(CURVE.points, 4)
    assert segment.unique().tolist() == [0, 1, 2, 3]
    shares = segment.bincount() / len(segment)  # the points are denser where the curve is flat
    assert float(shares.min()) > 0.15
    assert float(room[0]) == pytest.approx(float(CURVE.arc[-1]) / 4, rel=1e-5)
    assert float(room.min()) < 0.01


def test_at_equal_strength_penalties_charge_alike_for_normal_sensitivity():
    """σ² E(s·∇m)² ≈ E‖Π_N ∇m‖², for a margin whose gradient is the same everywhere."""
    settings = Settings(examples=3000)
    data = Sample.draw(CURVE, settings, torch.Generator().manual_seed(0))
    gradient = torch.tensor([0.3, -1.0]).expand_as(data.x)
    charge = settings.sigma**2 * (data.s * gradient).sum(1).square().mean()
    across = split(gradient, data.tangent)[1].square().sum(1).mean()
    assert float(charge) == pytest.approx(float(across), rel=0.1)
    assert settings.weight("taser", 2.0) == pytest.approx(2.0 * settings.sigma**2)
    assert settings.weight("isotropic", 2.0) == 2.0


def test_measure_against_a_linear_classifier():
    x, y = torch.rand(50, 2) * torch.tensor([1.0, 0.0]), torch.zeros(50, dtype=torch.long)
    model = linear(0.5, 2.0, -0.1)  # the line y = 0.05 − x/4
    x[:, 0] -= 1.0  # below the line by 0.05 at least
    torch.testing.assert_close(margin_gradient(model, x, y), torch.tensor([0.5, 2.0]).expand(50, 2))
    flat = measure(model, x, y, torch.tensor([1.0, 0.0]).expand(50, 2), eps=0.5)
    assert (flat.tangent, flat.normal) == pytest.approx((0.5, 2.0))
    assert flat.ratio == pytest.approx(4.0)
    assert (flat.accuracy, flat.accuracy_normal, flat.accuracy_any) == (1.0, 0.0, 0.0)
    upright = measure(model, x, y, torch.tensor([0.0, 1.0]).expand(50, 2), eps=0.15)
    assert upright.ratio == pytest.approx(0.25)
    assert upright.accuracy_normal > upright.accuracy_any


def point(tangent, normal, accuracy=0.9):
    return Sensitivity(tangent, normal, accuracy, accuracy, accuracy)


def test_matching_is_exact_along_a_power_law():
    path = [point(t, 0.1 * t**1.5, 0.5 + 0.1 * math.log(t)) for t in (20.0, 8.0, 1.0)]
    found = at_level(path, "tangent", 5.0)
    assert found.normal == pytest.approx(0.1 * 5**1.5)
    assert found.accuracy == pytest.approx(0.5 + 0.1 * math.log(5))
    assert at_level(path, "normal", found.normal).tangent == pytest.approx(5.0)
    with pytest.raises(ValueError, match="1 to 20; got 30"):
        at_level(path, "tangent", 30.0)


def test_common_levels_lie_where_every_path_passes():
    one, two = [point(16.0, 1.0), point(1.0, 0.1)], [point(32.0, 1.0), point(2.0, 0.1)]
    assert common_levels([one, two], "tangent", 2) == pytest.approx([4.0, 8.0])
    assert common_levels([one, [point(40.0, 1.0), point(20.0, 1.0)]], "tangent") == []


def test_taser_lowers_the_normal_share(quick):
    (plain,) = quick.measured[PLAIN, 0.0]
    for strength in quick.settings.strengths:
        (ours,) = quick.measured["taser", strength]
        assert ours.ratio < (0.9 if strength < 0.001 else 0.3) * plain.ratio
        assert ours.accuracy_any <= ours.accuracy_normal <= ours.accuracy


def test_at_equal_tangential_sensitivity_taser_leaves_less_normal_than_isotropic(quick):
    levels = quick.levels("tangent")
    assert levels
    for level in levels:
        (ours,) = quick.matched("taser", "tangent", level)
        (theirs,) = quick.matched("isotropic", "tangent", level)
        assert ours.tangent == pytest.approx(theirs.tangent)
        assert ours.normal < 0.6 * theirs.normal


def test_on_the_curve_the_residual_does_not_depend_on_the_normal(quick):
    strength = quick.shown("taser")
    (control,) = quick.measured[ON_CURVE, strength]
    (ours,) = quick.measured["taser", strength]
    assert control.ratio > 3 * ours.ratio


def test_the_strength_shown_is_the_nearest_to_the_middle_level(quick):
    middle = quick.levels("tangent")[1]
    apart = {
        strength: abs(math.log(quick.measured["isotropic", strength][0].tangent / middle))
        for strength in quick.settings.strengths
    }
    assert quick.shown("isotropic") == min(apart, key=apart.get)
    assert quick.shown(PLAIN) == 0.0


def test_runs_repeat_to_the_bit():
    one, again, other = (
        manifold.run(settings)[0] for settings in (TINY, TINY, replace(TINY, seeds=(4,)))
    )
    assert one == again
    assert one.measured != other.measured


@pytest.mark.parametrize(("isotropic", "taser"), [(0.4, 0.1), (0.1, 0.4), (0.2, 0.2)])
def test_factors_follow_the_numbers(isotropic, taser):
    """Made-up paths whose normal share is the same at every strength."""
    shares = {"isotropic": isotropic, "first-order": 2 * taser, "taser": taser}
    measured = {
        (method, strength): [point(0.1 / strength, share * 0.1 / strength)] * len(TINY.seeds)
        for method, share in shares.items()
        for strength in TINY.strengths
    }
    study = manifold.Study(TINY, measured, 1.0)
    assert study.factors("tangent", "isotropic", "normal") == pytest.approx([isotropic / taser] * 3)
    assert study.factors("tangent", "first-order", "normal") == pytest.approx([2.0] * 3)
    row = f"| isotropic | tangent | normal | {isotropic / taser:.2g} |"
    assert row in manifold.factors_table(study)


def test_no_common_level_is_reported_and_does_not_fail():
    study, data, models = manifold.run(TINY)
    apart = {
        (method, strength): [replace(m, tangent=100.0) if method == "taser" else m for m in found]
        for (method, strength), found in study.measured.items()
    }
    study = replace(study, measured=apart)
    assert study.levels("tangent") == []
    assert "in common" in manifold.matched_table(study)
    assert "| – | – |" in manifold.factors_table(study)
    assert len(manifold.draw(study, data, models).subfigs) == 2


def test_the_script_writes_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(manifold, "QUICK", TINY)
    manifold.main(["--quick", "--out", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {
        "table.md", "figures.json", "geometry.png"
    }  # fmt: skip
    assert (tmp_path / "geometry.png").read_bytes().startswith(b"\x89PNG")
    assert "| TASER, first order |" in (tmp_path / "table.md").read_text()
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["runs"]) == 2 + len(METHODS) * len(TINY.strengths)


def test_diverging_training_says_so():
    with pytest.raises(RuntimeError, match="diverged"):
        manifold.run(replace(TINY, rate=1e30))
