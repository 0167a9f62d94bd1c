"""Threats whose features differ: what every attack returns lies inside, for random threats."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attacks.victims import linear, seeded
from taser.attacks import (
    FGSM,
    PGD,
    SPSA,
    Attack,
    AutoAttackPart,
    Norm,
    RandomNoise,
    RaySearch,
    RestartedPGD,
    Threat,
    TransferPGD,
    autoattack,
)  # fmt: skip
from taser.attacks._threat import inside
from taser.regularisers._taser import steepest

NORMS: tuple[Norm, ...] = ("linf", "l2", "l1")
QUICK = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@dataclass
class Case:
    """A threat with valid inputs; written from its parts, so that a mistake of the class shows."""

    threat: Threat
    x: Tensor
    scale: list[float]
    grid: list[float]
    groups: list[list[int]]
    low: list[float]
    high: list[float]

    def check(self, x_adv: Tensor) -> None:
        free = [g for g in self.groups if self.scale[g[0]] > 0]
        counted = [i for i in range(len(self.scale)) if not any(i in g for g in free)]
        total = torch.zeros(len(self.x), dtype=torch.float64)
        for i in counted:
            change = (x_adv[:, i] - self.x[:, i]).double()
            if self.scale[i] == 0:
                assert not change.any()
                continue
            size = change.abs() / self.scale[i]
            kinds = {"linf": torch.maximum(total, size), "l2": total + size**2, "l1": total + size}
            total = kinds[self.threat.norm]
            if self.grid[i]:
                steps = change / self.grid[i]
                assert bool(((steps - steps.round()).abs() < 1e-3).all())
        assert bool(((total.sqrt() if self.threat.norm == "l2" else total) <= self.threat.epsilon
                     * (1 + 1e-3)).all())  # fmt: skip
        for i, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            assert bool(((x_adv[:, i] >= low - 1e-5) & (x_adv[:, i] <= high + 1e-5)).all())
        for g in free:
            part = x_adv[:, g]
            assert bool((((part == 0) | (part == 1)).all(1) & (part.sum(1) == 1)).all())


@st.composite
def cases(draw: Any) -> Case:
    """Features of every kind, of any mixture: fixed, bounded, whole, in one-hot groups."""
    plain, wide = draw(st.integers(1, 4)), draw(st.sampled_from([0, 2, 3]))
    size, epsilon = plain + wide, draw(st.floats(0.05, 3.0))
    scale = [draw(st.sampled_from([0.0, 0.2, 1.0, 2.5])) for _ in range(plain)]
    scale += [draw(st.sampled_from([0.0, 1.0]))] * wide
    if not any(scale):
        scale[0] = 1.0
        scale[plain:] = [0.0] * wide
    grid = [draw(st.sampled_from([0.0, 0.0, 0.25, 1.0])) for _ in range(plain)] + [0.0] * wide
    ends = [draw(st.sampled_from([(-torch.inf, torch.inf), (-1.0, 1.0), (0.0, torch.inf)]))
            for _ in range(plain)]  # fmt: skip
    ends += [(-torch.inf, torch.inf)] * wide
    low, high = ([end[k] for end in ends] for k in (0, 1))
    generator = seeded(draw(st.integers(0, 1000)))
    x = torch.randn(6, size, generator=generator).clamp(torch.tensor(low), torch.tensor(high))
    groups = [list(range(plain, size))] * bool(wide)
    if wide:
        x[:, plain:] = torch.eye(wide)[torch.randint(wide, (6,), generator=generator)]
    norm = draw(st.sampled_from(NORMS))
    threat = Threat(norm, epsilon, low, high, scale, grid if any(grid) else None, groups)
    return Case(threat, x, scale, grid, groups, low, high)


def network(size: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(size, 16), nn.Tanh(), nn.Linear(16, 3)).eval()


@QUICK
@given(cases())
def test_no_attack_leaves_its_threat(case: Case) -> None:
    x, model, threat = case.x, network(case.x.shape[1]), case.threat
    y = model(x).argmax(1)
    attacks: list[Attack] = [
        PGD(threat, 5), PGD(threat, 5, start="gaussian"), FGSM(threat), TransferPGD(threat, 5, 1),
        RestartedPGD(threat, 5, 2), SPSA(threat, 3, 4), SPSA(threat, 3, 4, rule="momentum"),
        RandomNoise(threat, 5), RaySearch(threat, 8),
    ]  # fmt: skip
    for attack in attacks:
        x_adv = attack(model, x, y, generator=seeded(1))
        case.check(x_adv)
        assert bool(inside(threat, x_adv, x).all())


@settings(QUICK, max_examples=8)
@given(cases())
def test_autoattack_stays_inside_too(case: Case) -> None:
    model = network(case.x.shape[1])
    y = model(case.x).argmax(1)
    for part in ("apgd-ce", "fab-t"):
        x_adv = AutoAttackPart(part, case.threat)(model, case.x, y)  # type: ignore[arg-type]
        case.check(x_adv)


@QUICK
@given(cases(), st.floats(0.1, 20.0))
def test_projection_is_valid_and_leaves_allowed_points_alone(case: Case, far: float) -> None:
    x, threat = case.x, case.threat
    there = x + far * torch.randn(x.shape, generator=seeded(2))
    near = threat.project(there, x)
    case.check(near)
    torch.testing.assert_close(threat.project(near, x), near, atol=1e-5, rtol=1e-4)
    case.check(threat.random(x, seeded(3)))
    drawn = threat.random(x, seeded(4))
    torch.testing.assert_close(threat.project(drawn, x), drawn, atol=1e-5, rtol=1e-4)
    assert not bool(inside(threat, x + 1e3, x).any())


@pytest.mark.parametrize("norm", NORMS)
def test_the_worst_case_of_a_linear_model_is_found(norm: Norm) -> None:
    """max_δ g·δ over ‖δ/s‖ ≤ ε is ε times the dual norm of s·g, and a category costs nothing."""
    model, scale = linear(classes=2, features=6), torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0, 1.0])
    x = torch.randn(20, 6, generator=seeded())
    x[:, 4:] = torch.tensor([1.0, 0.0])
    threat = Threat(norm, 0.3, None, None, scale, one_hot=[[4, 5]])
    y = torch.zeros(20, dtype=torch.int64)
    x_adv = TransferPGD(threat, 200, 1, 0.02)(model, x, y, generator=seeded())
    with torch.no_grad():
        g = model.weight[1] - model.weight[0]  # type: ignore[index, operator]
        rise = (x_adv - x) @ g
    dual = {"linf": 1, "l2": 2, "l1": torch.inf}[norm]
    expected = 0.3 * (scale * g)[:4].norm(p=dual) + (g[5] - g[4]).clamp_min(0)
    torch.testing.assert_close(rise, expected.expand(20), rtol=0.02, atol=0)


def test_the_l1_projection_is_the_nearest_point_of_ball_and_box() -> None:
    """Against a fine search along the line from the projection to other points of both."""
    x, there = torch.rand(30, 8, generator=seeded()), torch.randn(30, 8, generator=seeded(1))
    threat = Threat("l1", 0.8)
    near = threat.project(x + there, x)
    assert bool((threat.distance(near, x) <= 0.8 + 1e-5).all())
    for seed in range(50):
        other = threat.random(x, seeded(seed))
        # No direction into the convex set brings it nearer: (other − near)·(there − near) ≤ 0.
        assert bool((((other - near) * (x + there - near)).sum(1) <= 1e-5).all())


def test_steepest_respects_what_cannot_change() -> None:
    threat = Threat("linf", 0.2, None, None, scale=[1.0, 0.0, 3.0])
    v = steepest(torch.tensor([[1.0, 2.0, -3.0]]), threat)
    torch.testing.assert_close(v, torch.tensor([[1.0, 0.0, -3.0]]) / (10 / 3) ** 0.5)


def test_a_structured_threat_survives_json_and_compares() -> None:
    import json

    mask = torch.ones(2, 3)
    mask[0, 0] = 0
    threat = Threat("l2", 0.5, scale=mask, low=torch.zeros(2, 3), high=[[1, None, 1]] * 2)
    again = Threat(**json.loads(json.dumps(threat.numbers(), allow_nan=False)))
    assert threat == again
    assert hash(threat) == hash(again)
    assert "1 fixed" in str(threat)
    assert Threat("linf", 0.1) != threat
    assert set(Threat("linf", 0.1).numbers()) == {"norm", "epsilon", "low", "high"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": [1.0, -1.0]}, "zero or more"),
        ({"scale": [1.0, float("nan")], "grid": [0.0, -1.0]}, "zero or more"),
        ({"scale": [0.0, 0.0]}, "positive for some feature"),
        ({"scale": [1.0, 1.0], "grid": [1.0]}, r"scale \(2,\), grid \(1,\)"),
        ({"scale": [[1.0], [1.0, 2.0]]}, "one for each feature"),
        ({"low": [0.0, 2.0], "high": [1.0, 1.0]}, "at most high"),
        ({"scale": [1.0, 1.0], "one_hot": [[0, 2]]}, "different columns of a scale"),
        ({"one_hot": [[0, 1]]}, "different columns of a scale"),
        ({"scale": [1.0], "one_hot": [[0, 0]]}, "different columns"),
        ({"scale": [1.0], "one_hot": [[0]]}, "two or more"),
        ({"scale": [1.0, 0.0], "one_hot": [[0, 1]]}, "together or not at all"),
    ],
)
def test_structure_that_cannot_be_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Threat("linf", 0.5, **({"low": None, "high": None} | options))


def test_inputs_of_another_kind_are_refused_at_the_start() -> None:
    mask = Threat("linf", 0.1, scale=torch.ones(3, 8, 8))
    with pytest.raises(ValueError, match=r"shape \(3, 8, 8\); got \(1, 8, 8\)"):
        PGD(mask, 1)(network(64), torch.rand(2, 1, 8, 8), torch.zeros(2).long())
    groups = Threat("linf", 0.1, None, None, [1.0, 1.0], one_hot=[[0, 1]])
    with pytest.raises(ValueError, match="one-hot group is one 1"):
        groups.check_inputs(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))


def test_autoattack_says_what_replaces_square() -> None:
    plan = autoattack(Threat("linf", 0.1, None, None, [1.0, 0.0]), classes=3, images=False)
    assert [stage.name for stage in plan.stages][-1] == "spsa-strong"
    assert "in place of Square: Square takes one ε and one range" in plan.note
