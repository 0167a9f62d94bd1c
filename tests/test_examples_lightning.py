"""The Lightning example: its term always, its training where Lightning is installed."""

import importlib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import taser

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("lightning_callback")


@pytest.mark.parametrize("kind", ["tensor", "dictionary"])
def test_the_term_is_added_to_the_loss(example: ModuleType, kind: str) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(16, 4), torch.arange(16) % 3
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    score = taser.scores.Gaussian.fit(x)

    def step(batch: tuple[Tensor, Tensor], index: int) -> Any:
        assert index == 7
        loss = F.cross_entropy(network(batch[0]), batch[1])
        return loss if kind == "tensor" else {"loss": loss, "seen": len(batch[0])}

    def loss_of(result: Any) -> Tensor:
        return result if kind == "tensor" else result["loss"]

    term = example.TaserTerm(score, lam=0.5)
    torch.manual_seed(1)
    longer = term.wrapped(network, step)((x, y), 7)
    torch.manual_seed(1)
    expected = step((x, y), 7)
    added = 0.5 * taser.SteinPenalty()(network, x, y, score(x))
    assert added > 0
    torch.testing.assert_close(loss_of(longer), loss_of(expected) + added)
    if kind == "dictionary":
        assert longer["seen"] == 16


@pytest.mark.skipif(find_spec("lightning") is not None, reason="Lightning is installed")
def test_without_lightning_it_says_what_to_install(example: ModuleType) -> None:
    with pytest.raises(SystemExit, match="pip install lightning"):
        example.train(0.0)


@pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is no dependency")
@pytest.mark.filterwarnings("ignore")
def test_a_trainer_lowers_the_residual_variance(example: ModuleType) -> None:
    plain, tuned = example.train(0.0), example.train(1e-4)
    assert plain["variance"] > 3 * tuned["variance"] > 0
    assert tuned["accuracy"] > plain["accuracy"] - 0.02 > 0.9
