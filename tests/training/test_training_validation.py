"""Which weights are kept as best, and when a run stops early."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import MLP, lines, same, small, weights
from torch import Tensor, nn

from taser import attacks
from taser._checkpoint import latest_checkpoint
from taser.attacks import Threat
from taser.data._dataset import subset
from taser.training import _run as run
from taser.training import train
from taser.training._run import ValidationMetrics, validate

# Over five epochs the clean figure is best in the third, the robust one in the second, where two
# later epochs are its equal: the fourth with more clean accuracy, the fifth with less.
FIGURES = [
    ValidationMetrics(0.1, 0.1),
    ValidationMetrics(0.2, 0.4),
    ValidationMetrics(0.5, 0.3),
    ValidationMetrics(0.4, 0.4),
    ValidationMetrics(0.3, 0.4),
]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """Validations that say what we want; and the weights that each of them saw."""
    figures: Iterator[ValidationMetrics] = iter(FIGURES)
    seen: list[dict[str, Tensor]] = []

    def say(model: nn.Module, *_: Any, **__: Any) -> ValidationMetrics:
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return next(figures)

    monkeypatch.setattr(run, "validate", say)
    return seen


@pytest.mark.parametrize(
    ("method", "select", "best"),
    [("standard", "auto", 3), ("pgd", "auto", 4), ("pgd", "clean", 3), ("standard", "robust", 4),
     ("pgd", "last", 5)],
)  # fmt: skip
def test_the_best_is_kept_beside_the_last(
    tmp_path: Path, scripted: list, method: str, select: str, best: int
) -> None:
    config = small(
        model=MLP, objective={"name": method}, validation={"select": select}, loop={"epochs": 5}
    )
    result = train(config, tmp_path)
    assert result.best_step == 2 * best  # a tie goes by the other figure
    assert (result.clean, result.robust) == (FIGURES[best - 1].clean, FIGURES[best - 1].robust)
    assert same(weights(tmp_path, "best"), scripted[best - 1])
    assert same(weights(tmp_path, "last"), scripted[-1])
    curve = [(line["epoch"], line["robust"]) for line in lines(tmp_path, "validation")]
    assert curve == [(i + 1, scores.robust) for i, scores in enumerate(FIGURES)]


def test_ties_keep_the_later_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "validate", lambda *_, **__: ValidationMetrics(0.3, 0.2))
    assert train(small(model=MLP, loop={"epochs": 3}), tmp_path).best_step == 6


@pytest.mark.parametrize(("patience", "epochs"), [(1, 3), (2, 4), (3, 5), (None, 5)])
def test_patience(tmp_path: Path, scripted: list, patience: int | None, epochs: int) -> None:
    """The robust figure rises last in the second epoch: an equal one is no improvement."""
    config = small(
        model=MLP, objective={"name": "pgd"}, validation={"patience": patience},
        loop={"epochs": 5},
    )  # fmt: skip
    assert train(config, tmp_path).steps == 2 * epochs
    assert len(scripted) == epochs
    assert train(config, tmp_path).steps == 2 * epochs  # a run that stopped stays stopped


def test_patience_is_refused_with_select_last() -> None:
    with pytest.raises(ValueError, match="patience cannot be combined with select=last"):
        small(validation={"select": "last", "patience": 2})


def test_validation_every_other_epoch_and_at_the_end(tmp_path: Path, scripted: list) -> None:
    train(small(model=MLP, validation={"every": 2}, loop={"epochs": 5}), tmp_path)
    assert [line["epoch"] for line in lines(tmp_path, "validation")] == [2, 4, 5]
    assert len(scripted) == 3


def test_the_ema_is_validated_and_kept(tmp_path: Path, scripted: list) -> None:
    train(small(loop={"epochs": 2, "ema": 0.9}), tmp_path)
    checkpoint = latest_checkpoint(tmp_path / "checkpoints")
    assert checkpoint is not None
    assert same(weights(tmp_path, "last"), checkpoint.tensors["average"])
    assert same(weights(tmp_path, "last"), scripted[1])
    assert not same(weights(tmp_path, "last"), checkpoint.tensors["model"])


def test_figures_of_a_model_in_closed_form() -> None:
    """z = x: the class of the larger coordinate; ε takes from those who lead by less than 2ε."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.eye_(model.weight)
    lead = torch.tensor([0.05, 0.15, 0.3, 0.5, -0.1])  # the last one is wrong already
    x, y = torch.stack([0.5 + lead, torch.full((5,), 0.5)], 1), torch.zeros(5, dtype=torch.long)
    attack = attacks.PGD(Threat("linf", 0.1, None, None), steps=5, step_size=0.1)
    for batch in (2, 5):
        scores = validate(model, x, y, attack, batch=batch)
        assert scores == ValidationMetrics(clean=pytest.approx(0.8), robust=pytest.approx(0.4))  # type: ignore[arg-type]


def test_figures_of_a_regression_in_closed_form() -> None:
    """f(x) = 2x, y = 0: −mean (2x)² and −mean (2|x| + 2ε)²."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    x = torch.tensor([[0.5], [-1.0], [2.0]])
    attack = attacks.PGD(Threat("linf", 0.1, None, None), steps=5, step_size=0.1)
    scores = validate(model, x, torch.zeros(3), attack)
    assert scores.clean == pytest.approx(-float((2 * x).square().mean()), rel=1e-6)
    assert scores.robust == pytest.approx(-float((2 * x.abs() + 0.2).square().mean()), rel=1e-6)


def test_the_test_split_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation gets rows of the validation part, as many as configured, and of all classes."""
    given: list[Tensor] = []

    def look(_: nn.Module, x: Tensor, *__: Any, **___: Any) -> ValidationMetrics:
        given.append(x)
        return ValidationMetrics(0.0, 0.0)

    monkeypatch.setattr(run, "validate", look)
    config = small(model=MLP, validation={"examples": 20})
    train(config, tmp_path)
    held_out = run.set_up(config).dataset.validation
    assert torch.equal(given[0], held_out.rows(subset(len(held_out), 20)))
