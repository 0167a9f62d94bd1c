"""Our AutoAttack is the package's: the same verdicts, less work, nothing lost."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from attacks.victims import accuracy, digits, linear, seeded, undefended
from taser.attacks import AttackWarning, AutoAttackPart, Norm, Threat, autoattack
from taser.attacks._autoattack import EarlyExit
from taser.attacks._threat import inside
from taser.models import Wrapped


def _hasten(package: Any) -> None:
    """Fewer steps than the standard version, the same for both."""
    package.square.n_queries = 300
    package.fab.n_iter = package.apgd.n_iter = package.apgd_targeted.n_iter = 15


CASES: list[tuple[Norm, float]] = [("linf", 0.1), ("l2", 0.6)]


def plain(part: str, threat: Threat, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The package's own verdicts for one attack: True where the model is robust."""
    from pyautoattack import AutoAttack

    norm = {"linf": "Linf", "l2": "L2"}[threat.norm]
    attack = AutoAttack(undefended(), norm=norm, eps=threat.epsilon, seed=0)
    attack.attacks_to_run = [part]
    _hasten(attack)
    with torch.random.fork_rng():
        return attack.run_standard_evaluation(x, y)[1] == y


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our parts, with as few steps."""
    package = AutoAttackPart._package

    def quicker(self: AutoAttackPart, *arguments: object) -> object:
        made = package(self, *arguments)  # type: ignore[arg-type]
        _hasten(made)
        return made

    monkeypatch.setattr(AutoAttackPart, "_package", quicker)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("norm", "epsilon"), CASES)
@pytest.mark.parametrize("part", ["apgd-ce", "apgd-t", "fab-t", "square"])
def test_each_part_gives_the_verdicts_of_the_package(norm: Norm, epsilon: float, part: str) -> None:
    x, y = digits(40)
    threat = Threat(norm, epsilon)
    moved = AutoAttackPart(part, threat)(undefended(), x, y)  # type: ignore[arg-type]
    with torch.no_grad():
        robust = undefended()(moved).argmax(1) == y
    wanted = plain(part, threat, x, y)
    assert 0 < int(wanted.sum()) < 40  # both verdicts occur
    assert torch.equal(robust, wanted)
    assert inside(threat, moved, x).all()


def test_broken_examples_are_not_evaluated_again() -> None:
    x, y = digits(30)
    evaluated = 0

    def counting(inputs: torch.Tensor) -> torch.Tensor:
        nonlocal evaluated
        evaluated += len(inputs)
        return undefended()(inputs)

    AutoAttackPart("apgd-ce", Threat("linf", 0.3))(Wrapped(counting, undefended()), x, y)
    assert evaluated < 0.2 * 30 * 101  # the package alone evaluates each 101 times


def test_early_exit_returns_wrong_answers_without_gradient_for_broken_rows() -> None:
    model, x = linear(classes=3), torch.rand(4, 6, generator=seeded())
    y = model(x).argmax(1)
    target = EarlyExit(lambda points, _: model(points), x, y, Threat("linf", 1.0))
    best = y[0]
    away = model.weight[(best + 1) % 3] - model.weight[best]  # type: ignore[index]
    inside_ball = x.clone()
    inside_ball[0] = (x[0] + 100 * away).clamp(0, 1)  # the corner of the box that is worst

    def attack(_x: torch.Tensor, _y: torch.Tensor) -> None:
        target(inside_ball.detach())
        broken = target.broken.clone()
        assert broken.any()
        assert not broken.all()
        again = x.clone().requires_grad_()
        logits = target(again)
        assert (logits.argmax(1) != y)[broken].all()
        (gradient,) = torch.autograd.grad(logits.square().sum(), again)
        assert not gradient[broken].any()
        assert gradient[~broken].abs().sum(1).gt(0).all()

    target.run(attack)
    assert torch.equal(target.found[target.broken], inside_ball[target.broken])


def test_points_outside_the_ball_break_nothing() -> None:
    x, y = digits(10)
    target = EarlyExit(lambda points, _: undefended()(points), x, y, Threat("linf", 0.01))
    before = target.broken.clone()
    target.run(lambda x, y: target(1 - x))  # noqa: ARG005
    assert torch.equal(target.broken, before)


@pytest.mark.parametrize(
    ("classes", "names", "note"),
    [
        (4, ["apgd-ce", "apgd-t", "fab-t", "square"], ""),
        (3, ["apgd-ce", "apgd-dlr", "fab-t", "square"], "four classes"),
        (2, ["apgd-ce", "pgd-margin", "fab-t", "square"], "four classes"),
    ],
)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_few_classes_and_tables_are_attacked_and_reported(
    classes: int, names: list[str], note: str, norm: Norm
) -> None:
    model, x = linear(classes), 3 * torch.randn(12, 6, generator=seeded())
    y = model(x).argmax(1)
    threat = Threat(norm, 0.5, low=None, high=None)
    attack = autoattack(threat, classes=classes, images=False)
    assert note in attack.note
    wanted = names if norm == "linf" else [*names[:3], "spsa-strong"]
    assert [stage.name for stage in attack.stages] == wanted
    moved = x
    for stage in attack.stages[:3]:
        moved = stage(model, x, y, generator=seeded())
        assert inside(threat, moved, x).all()
        # of a linear model every example closer to the boundary than ε has to fall
        if stage.name != "apgd-dlr":
            assert accuracy(model, moved, y) == pytest.approx(_certain(model, x, y, threat))


def test_outliers_of_a_table_let_nothing_escape() -> None:
    """Two rows at ±100 make the box so wide that the way into [0, 1] and back rounds visibly."""
    model, x = linear(2), torch.randn(60, 6, generator=seeded())
    x[:2] = torch.tensor([[100.0], [-100.0]])
    y = model(x).argmax(1)
    threat = Threat("linf", 0.3, low=None, high=None)
    moved = AutoAttackPart("apgd-ce", threat)(model, x, y)
    assert inside(threat, moved, x).all()
    assert accuracy(model, moved, y) == pytest.approx(_certain(model, x, y, threat))


def _certain(model: nn.Module, x: torch.Tensor, y: torch.Tensor, threat: Threat) -> float:
    """The exact robust accuracy of a linear model: min_j (z_y − z_j)/‖w_y − w_j‖ > ε, dual norm."""
    with torch.no_grad():
        z, w = model(x), model.weight
        gaps = z.gather(1, y[:, None]) - z
        widths = (w[y][:, None] - w[None]).norm(p=1 if threat.norm == "linf" else 2, dim=2)
        distances = torch.where(widths > 0, gaps / widths.clamp_min(1e-12), torch.inf)
    return float((distances.amin(1) > threat.epsilon).float().mean())


@pytest.mark.usefixtures("hasty")
def test_square_searches_vectors() -> None:
    model, x = linear(2), torch.randn(12, 6, generator=seeded())
    y = model(x).argmax(1)
    threat = Threat("linf", 0.5, low=None, high=None)
    moved = AutoAttackPart("square", threat)(model, x, y)
    assert inside(threat, moved, x).all()
    assert accuracy(model, moved, y) == pytest.approx(_certain(model, x, y, threat))


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("part", ["apgd-ce", "apgd-t", "fab-t", "square"])
def test_models_in_double_precision_are_attacked(part: str) -> None:
    x, y = digits(10)
    model = copy.deepcopy(undefended()).double()
    threat = Threat("linf", 0.2)
    moved = AutoAttackPart(part, threat)(model, x.double(), y)  # type: ignore[arg-type]
    assert moved.dtype == torch.float64
    assert inside(threat, moved, x.double()).all()
    assert accuracy(model, moved, y) < accuracy(model, x.double(), y)


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="two classes"):
        autoattack(classes=1)


def test_what_the_package_logs_becomes_a_warning() -> None:
    x, y = digits(8)

    class Constant(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flat = x.flatten(1)[:, :10]
            return (flat - flat.detach()) * 0 + torch.arange(10.0)

    with pytest.warns(AttackWarning, match="zero gradient"):
        AutoAttackPart("apgd-t", Threat("linf", 0.1))(Constant(), x, torch.full_like(y, 9))


def test_an_honest_model_gives_no_warning() -> None:
    x, y = digits(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AutoAttackPart("apgd-ce", Threat("linf", 0.01))(undefended(), x, y)
