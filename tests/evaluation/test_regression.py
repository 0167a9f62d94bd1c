"""Regression under attack, against a linear regression whose worst case has a closed form."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import taser
from taser.attacks import Norm, RestartedPGD, Threat
from taser.cli import app
from taser.data._dataset import Standardisation
from taser.evaluation import RegressionEvaluation, compare_errors, error_curve, evaluate_regression
from taser.evaluation._regression import mean_interval

WEIGHT = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0], dtype=torch.float64)
DUAL = {"linf": 1.0, "l2": 2.0, "l1": torch.inf}


def line(shape: tuple[int, ...] = (1,)) -> nn.Module:
    """f(x) = w·x + 0.3."""
    model = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)) if not shape else nn.Linear(5, 1)
    layer = model[0] if isinstance(model, nn.Sequential) else model
    with torch.no_grad():
        layer.weight.copy_(WEIGHT[None])  # type: ignore[union-attr, operator]
        layer.bias.fill_(0.3)  # type: ignore[union-attr, operator]
    return model.double()


def rows(n: int = 150) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, dtype=torch.float64, generator=generator)
    noise = torch.randn(n, dtype=torch.float64, generator=generator)
    return x, x @ WEIGHT + 0.3 + 0.5 * noise


@pytest.mark.parametrize("norm", DUAL)
@pytest.mark.parametrize("shape", [(1,), ()])
def test_the_worst_case_of_a_linear_regression_is_its_closed_form(
    norm: Norm, shape: tuple[int, ...]
) -> None:
    """|f(x') − y| is at most |f(x) − y| + ε‖w‖ in the dual norm."""
    x, y = rows()
    threat = Threat(norm, 0.2, low=None, high=None)
    result = taser.evaluate(line(shape), x, y, threat=threat, attacks=["pgd"], n=200)
    assert isinstance(result, RegressionEvaluation)
    clean = (x @ WEIGHT + 0.3 - y).abs()
    largest = clean + 0.2 * WEIGHT.norm(p=DUAL[norm])
    torch.testing.assert_close(result.mse, float(clean.square().mean()), rtol=1e-6, atol=0)
    torch.testing.assert_close((result.worst - y).abs(), largest, rtol=1e-6, atol=0)
    assert result.robust_mse == pytest.approx(float(largest.square().mean()), rel=1e-6)
    assert bool((threat.distance(result.x_adv, x) <= 0.2 * (1 + 1e-6)).all())  # type: ignore[arg-type]


def test_fixed_features_and_a_box_count() -> None:
    x, y = rows()
    threat = Threat("linf", 0.2, low=None, high=None, scale=[1.0, 0.0, 2.0, 1.0, 0.5])
    result = evaluate_regression(line(), x, y, threat=threat, attacks=["pgd"])
    largest = (x @ WEIGHT + 0.3 - y).abs() + 0.2 * (1.0 + 2 * 0.5 + 0.5 * 3.0)
    torch.testing.assert_close((result.worst - y).abs(), largest, rtol=1e-6, atol=0)


def test_errors_are_in_the_targets_own_units_with_their_intervals() -> None:
    x, y = rows()
    scale = Standardisation((100.0,), (7.0,))
    result = evaluate_regression(
        line(), x, y, targets=scale, threat=Threat("linf", 0.1, None, None), attacks=["fgsm"]
    )
    e = 7 * (x @ WEIGHT + 0.3 - y)
    found = result.errors(result.clean)
    assert found["MSE"].value == pytest.approx(float(e.square().mean()))
    assert found["MAE"].value == pytest.approx(float(e.abs().mean()))
    r2 = 1 - e.square().mean() / (7 * (y - y.mean())).square().mean()
    assert found["R²"].value == pytest.approx(float(r2))
    assert found["MSE"].low < found["MSE"].value < found["MSE"].high
    torch.testing.assert_close(result.y, 7 * y + 100)


def test_the_interval_of_r2_covers() -> None:
    """95 of 100 intervals hold the true R², within four standard deviations of a binomial."""
    true, covered, n = 1 - 0.25 / (float(WEIGHT.square().sum()) + 0.25), 0, 200
    model = line()
    for seed in range(n):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(100, 5, dtype=torch.float64, generator=generator)
        y = x @ WEIGHT + 0.3 + 0.5 * torch.randn(100, dtype=torch.float64, generator=generator)
        with torch.no_grad():
            clean = model(x)[:, 0]
        made = RegressionEvaluation(
            Threat("linf", 0.1),
            torch.arange(100),
            y,
            clean,
            {},
            (),
            None,  # type: ignore[arg-type]
        )
        interval = made.errors(clean)["R²"]
        covered += interval.low <= true <= interval.high
    assert covered >= n * 0.93 - 4 * (n * 0.93 * 0.07) ** 0.5


def test_spsa_finds_it_too_and_two_are_compared_by_pairs() -> None:
    x, y = rows(60)
    threat = Threat("linf", 0.2, None, None)
    good = evaluate_regression(line(), x, y, threat=threat, attacks=["pgd", "spsa", "noise"])
    spsa, noise = (good.errors(good.attacks[name])["MSE"].value for name in ("spsa", "noise"))
    assert good.mse < noise < spsa
    assert spsa > 0.9 * good.robust_mse
    worse = line()
    with torch.no_grad():
        worse.bias += 1.0  # type: ignore[operator]
    other = evaluate_regression(worse, x, y, threat=threat, attacks=["pgd"])
    gap = compare_errors(other, good)["clean"]
    e = x @ WEIGHT + 0.3 - y
    expected = mean_interval((e + 1).square() - e.square())
    assert gap.value == pytest.approx(expected.value)
    assert gap.excludes_zero()
    with pytest.raises(ValueError, match="same examples"):
        compare_errors(good, evaluate_regression(line(), x[:50], y[:50], threat=threat))


def test_the_curve_rises_from_the_clean_error() -> None:
    x, y = rows(50)
    threat = Threat("linf", 0.2, None, None)
    curve = error_curve(line(), x, y, threat=threat, attack=None, factors=(0.5, 1.0))
    e = (x @ WEIGHT + 0.3 - y).abs()
    for epsilon, error in curve:
        wanted = float((e + epsilon * WEIGHT.abs().sum()).square().mean())
        assert error == pytest.approx(wanted, rel=1e-6)


def test_bad_input_is_one_clear_error() -> None:
    x, y = rows(40)
    threat = Threat("linf", 0.2, None, None)
    with pytest.raises(ValueError, match=r"no attack on a regression called 'pdg'.*mean 'pgd'"):
        taser.evaluate(line(), x, y, threat=threat, attacks=["pdg"])
    with pytest.raises(ValueError, match="one number an example"):
        taser.evaluate(nn.Linear(5, 2).double(), x, y, threat=threat)
    with pytest.raises(ValueError, match="finite targets"):
        taser.evaluate(line(), x, y * torch.nan, threat=threat)
    with pytest.raises(ValueError, match="audit counts wrong classes"):
        taser.audit(line(), x, y, threat=threat)
    with pytest.raises(ValueError, match="should lie in"):
        taser.evaluate(line(), x, y, threat=Threat("linf", 0.1), attacks=[RestartedPGD()])


def test_diabetes_from_the_command_line(tmp_path: Path) -> None:
    run, invoke = str(tmp_path / "run"), CliRunner().invoke
    trained = invoke(app, [
        "train", "--recipe", "tables/diabetes", "--out", run, "loop.epochs=3", "--no-taser",
    ])  # fmt: skip
    assert trained.exit_code == 0, trained.output
    assert "mean squared error" in trained.output
    command = ["evaluate", "--model", run, "--epsilon", "bmi=2,bp=5", "--fixed", "sex"]
    evaluated = invoke(app, [*command, "--attacks", "pgd,noise", "--out", f"{run}/e"])
    assert evaluated.exit_code == 0, evaluated.output
    assert "R²" in evaluated.output
    record = json.loads((tmp_path / "run/e/evaluation.json").read_text())
    targets = record["y"]
    assert min(targets) >= 25  # the disease's progress, in its own units: 25 to 346
    assert max(targets) <= 346
    errors = record["errors"]
    assert errors["worst case, per example"]["MSE"]["value"] > errors["clean"]["MSE"]["value"]
    assert (tmp_path / "run/e/report.html").is_file()
    refused = invoke(app, ["audit", "--model", run, "--epsilon", "0.3"])
    assert refused.exit_code == 1
    assert "is a regression" in refused.output
