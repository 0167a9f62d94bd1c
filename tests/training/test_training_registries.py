"""A base method or a regulariser is one class and one line of its package's registry."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import lines, small
from torch import Tensor, nn

from taser.objectives import OBJECTIVES, Loss, Objective
from taser.regularisers import REGULARISERS, Regulariser
from taser.stein import SharedPass
from taser.training import set_up, train
from taser.training._run import ValidationMetrics, _Run


@dataclass(frozen=True)
class Noisy(Objective):
    """Cross-entropy at inputs with Gaussian noise."""

    sigma: float = 0.1

    def attack(self, model: Any, x: Tensor, y: Tensor, *, generator: Any = None) -> Tensor:  # noqa: ARG002
        return x + self.sigma * torch.randn(x.shape, generator=generator)

    def loss(self, model: Any, x: Tensor, y: Tensor, x_adv: Tensor) -> Loss:  # noqa: ARG002
        outputs = model(x_adv)
        return Loss(F.cross_entropy(outputs, y), attacked=outputs)


class OutputNorm(Regulariser):
    """The mean of ‖z‖^power."""

    def __init__(self, power: float = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.power = power

    def penalise(
        self, model: nn.Module, x: Tensor, y: Any, s: Any, shared: SharedPass  # noqa: ARG002
    ) -> Tensor:  # fmt: skip
        return model(x).norm(dim=1).pow(self.power).mean()


def test_a_method_and_a_regulariser_of_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OBJECTIVES, "noisy", Noisy)
    monkeypatch.setitem(REGULARISERS, "output-norm", OutputNorm)
    config = small(
        objective={"name": "noisy", "options": {"sigma": 0.2}},
        regulariser={
            "name": "output-norm",
            "weight": 0.1,
            "fraction": 0.5,
            "options": {"power": 1.0},
        },
    )
    train(config, tmp_path)
    assert lines(tmp_path, "train")[0]["penalty"] > 0
    run = _Run(set_up(config), tmp_path, None)
    assert run._selection_key(ValidationMetrics(0.9, 0.3)) == (0.3, 0.9)
    monkeypatch.setattr(Noisy, "moves_inputs", False)  # selects by clean accuracy, as standard
    assert run._selection_key(ValidationMetrics(0.9, 0.3)) == (0.9, 0.3)
    wrong = small(objective={"name": "noisy", "options": {"sigmaa": 0.2}})
    with pytest.raises(ValueError, match=r"no option of this objective called 'sigmaa' .*'sigma'"):
        train(wrong, tmp_path / "wrong")


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match=r"objective.name should be one of .*did you mean 'pgd'"):
        small(objective={"name": "pdg"})
    with pytest.raises(ValueError, match=r"regulariser.name should be one of .*'jacobian'"):
        small(regulariser={"name": "jacobi"})
