"""Binary classifiers with one output: trained, attacked, evaluated and audited as two logits."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typer.testing import CliRunner

import taser
from taser.attacks import RestartedPGD, Threat
from taser.cli import app
from taser.models import TwoLogits, load_model
from taser.training import load_trained

THREAT = Threat("linf", 0.3, low=None, high=None)


class OneNumber(nn.Module):
    """A linear model of one output, trained to be right on most rows."""

    def __init__(self, outputs: str | None = None) -> None:
        super().__init__()
        self.line = nn.Linear(5, 1)
        with torch.no_grad():
            self.line.weight.copy_(torch.tensor([[1.0, -1.0, 0.5, 0.0, 0.2]]))
            self.line.bias.zero_()
        self.probability = outputs == "probability"
        if outputs is not None:
            self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        z = self.line(x)[:, 0]
        return z.sigmoid() if self.probability else z


def rows(n: int = 120) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(0))
    return x, (OneNumber()(x) > 0).long()


@pytest.mark.parametrize("outputs", ["logit", "probability"])
def test_cross_entropy_of_two_logits_is_binary_cross_entropy(outputs: str) -> None:
    x, y = rows()
    y = 1 - y  # wrong ones too
    wanted = F.binary_cross_entropy_with_logits(OneNumber()(x), y.float())
    two = TwoLogits(OneNumber(outputs), outputs)  # type: ignore[arg-type]
    torch.testing.assert_close(F.cross_entropy(two(x), y), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outputs", ["logit", "probability"])
def test_the_worst_case_of_a_single_logit_is_found(outputs: str) -> None:
    """|w·x| ≤ ε‖w‖₁ is what can be broken."""
    x, y = rows()
    with torch.no_grad():
        heights, size = OneNumber()(x).abs(), 0.3 * OneNumber().line.weight.abs().sum()
    result = taser.evaluate(
        OneNumber(outputs), x, y, threat=THREAT, attacks=["apgd-ce", "pgd", "spsa"], n=200
    )
    assert result.clean_accuracy == 1.0
    assert result.robust.tolist() == (heights > size).tolist()


def test_it_is_audited() -> None:
    x, y = rows(60)
    found = taser.audit(OneNumber("logit"), x, y, threat=THREAT, steps=10, restarts=1, queries=64)
    assert found.verdict == "trust"


def test_what_one_number_is_has_to_be_said_and_several_labels_are_refused() -> None:
    x, y = rows(20)
    for model in (OneNumber(), nn.Linear(5, 1)):
        with pytest.raises(ValueError, match=r"one number an example.*'logit' or 'prob"):
            taser.evaluate(model, x, y, threat=THREAT, attacks=["pgd"])
    labels = torch.randint(2, (20, 3))
    with pytest.raises(ValueError, match=r"y of shape \(20, 3\) is multi-label"):
        taser.evaluate(nn.Linear(5, 3), x, labels, threat=THREAT, attacks=["pgd"])
    with pytest.raises(ValueError, match="outputs should be one of"):
        TwoLogits(OneNumber(), "sigmoid")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one number an example"):
        TwoLogits(nn.Linear(5, 3))(x)


def test_the_state_dict_is_the_models_own() -> None:
    two = TwoLogits(OneNumber())
    assert list(two.state_dict()) == ["line.weight", "line.bias"]
    two.load_state_dict(OneNumber().state_dict())


def test_a_recipe_trains_it_and_the_command_line_evaluates_it(tmp_path: Path) -> None:
    run, invoke = str(tmp_path / "run"), CliRunner().invoke
    trained = invoke(app, [
        "train", "--recipe", "tables/breast-cancer", "--out", run, "model.outputs=logit",
        "loop.epochs=3", "objective.name=pgd", "objective.steps=2",
    ])  # fmt: skip
    assert trained.exit_code == 0, trained.output
    network = load_trained(Path(run))
    assert isinstance(network, TwoLogits)
    x = torch.zeros(2, 30)
    assert network.model(x).shape == (2, 1)
    own = load_model(
        "mlp", f"{run}/best.safetensors", classes=2, shape=(30,), outputs="logit", width=64,
        activation="silu",
    )  # fmt: skip
    torch.testing.assert_close(own(x), network(x))
    evaluated = invoke(app, [
        "evaluate", "--model", run, "--epsilon", "0.3", "--attacks", "pgd", "--no-curve",
        "--out", f"{run}/e",
    ])  # fmt: skip
    assert evaluated.exit_code == 0, evaluated.output
    record = json.loads((tmp_path / "run/e/evaluation.json").read_text())
    assert record["clean_accuracy"] > 0.8
    three = invoke(app, [
        "train", "--recipe", "tables/breast-cancer", "--out", f"{run}3", "model.outputs=logit",
        "data.name=wine",
    ])  # fmt: skip
    assert "is for two classes" in three.output


def test_taser_and_training_attacks_take_it() -> None:
    x, y = rows(32)
    two = TwoLogits(OneNumber())
    score = taser.scores.Gaussian.fit(x).at(sigma=1.0)
    loss = F.cross_entropy(two(x), y) + 0.1 * taser.Taser(score, threat=THREAT)(two, x, y)
    loss.backward()
    assert bool(two.model.line.weight.grad.abs().sum() > 0)  # type: ignore[union-attr]
    moved = RestartedPGD(THREAT, 5, 1)(two, x, y)
    assert bool((THREAT.distance(moved, x) <= 0.3 + 1e-5).all())
