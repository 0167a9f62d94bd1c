"""The audit separates networks that hide their weakness from networks that do not."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taser.attacks import PGD, Threat
from taser.data import Dataset, load
from taser.evaluation import CHECKS, Audit, accuracy_interval, audit, evaluate, undefended
from taser.models import MLP, Wrapped
from taser.report._evaluation_report import audit_summary

THREAT = Threat("linf", 0.15)
QUICK = {"threat": THREAT, "steps": 20, "restarts": 2, "queries": 100}
HASTY = QUICK | {"steps": 5, "queries": 10}


class Quantised(nn.Module):
    """Four grey levels: the gradient is zero almost everywhere."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network((4 * x).round() / 4)


class Saturated(Quantised):
    """Logits so large that softmax is 0 or 1 in float32, and cross-entropy flat."""

    def forward(self, x: Tensor) -> Tensor:
        return 1000 * self.network(x)


class Stochastic(Quantised):
    """Noise on the input at every call."""

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x + 0.1 * torch.randn_like(x))


class Probabilities(Quantised):
    """Probabilities instead of logits."""

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).softmax(1)


class Notices(nn.Module):
    """Another network while it is differentiated."""

    def __init__(self, network: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.network, self.other = network, other

    def forward(self, x: Tensor) -> Tensor:
        return self.other(x) if x.requires_grad else self.network(x)


class Decoy(Notices):
    """The outputs of one network with the gradient of another."""

    def forward(self, x: Tensor) -> Tensor:
        other = self.other(x)
        return self.network(x.detach()) + other - other.detach()


class Hashed(Quantised):
    """Noise that is made from the input: the same at every call, and new after any step."""

    def forward(self, x: Tensor) -> Tensor:
        noise = 43758.5453 * (12345.678 * x.detach().double()).sin()
        return self.network(x + 0.25 * (noise - noise.floor() - 0.5).to(x))


class CutOff(Quantised):
    """Outputs without a graph."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def standard(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(network(x), y)


def adversarial(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return standard(network, PGD(THREAT, steps=5, step_size=0.06)(network, x, y), y)


def penalised(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """CE + ‖∇ₓCE‖²."""
    x = x.clone().requires_grad_()
    loss = F.cross_entropy(network(x), y, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
    return (loss + gradient.flatten(1).square().sum(1)).mean()


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


@pytest.fixture(scope="module")
def trained(digits: Dataset) -> Callable[[Loss], nn.Module]:
    """A network trained on digits with a loss; each loss is trained with once."""
    done: dict[Loss, nn.Module] = {}

    def train(loss: Loss) -> nn.Module:
        if loss not in done:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                network = MLP((1, 8, 8), 10, width=64)
                optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
                for _ in range(6):
                    for rows in torch.randperm(len(digits.train)).split(64):
                        optimiser.zero_grad()
                        loss(network, digits.train.x[rows], digits.train.y[rows]).backward()
                        optimiser.step()
            done[loss] = network.eval()
        return done[loss]

    return train


@pytest.fixture(scope="module")
def audited(digits: Dataset) -> Callable[[nn.Module], Audit]:
    surrogate = undefended(digits.train.x, digits.train.y, 10, epochs=3, width=8, seed=1)

    def run(model: nn.Module) -> Audit:
        x, y = digits.test.x[:100], digits.test.y[:100]
        return audit(model, x, y, surrogate=surrogate, **QUICK)

    return run


def failures(result: Audit) -> set[str]:
    return {check.name for check in result.failed}


@pytest.mark.parametrize("loss", [standard, adversarial, penalised], ids=lambda loss: loss.__name__)
def test_honest_networks_pass(
    loss: Loss, trained: Callable[[Loss], nn.Module], audited: Callable[[nn.Module], Audit]
) -> None:
    result = audited(trained(loss))
    assert result.verdict == "trust", [check.figure for check in result.failed]
    assert not result.skipped
    assert len(result.checks) == len(CHECKS)
    accuracies = list(result.curve.accuracies)
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[-1] == 0
    if loss is not standard:
        at_threat = dict(zip(result.curve.epsilons, accuracies, strict=True))[THREAT.epsilon]
        assert at_threat > 0.3  # there was something left to find


@pytest.mark.parametrize(
    ("mask", "caught"),
    [
        (Quantised, {"gradients exist", "gradient-free attacks", "decision-based attack",
                     "transfer from an undefended model"}),
        (Saturated, {"gradients exist", "adaptive attack on the margin"}),
        (Stochastic, {"outputs repeat", "iterative beats one-step"}),
    ],
)  # fmt: skip
def test_masked_networks_fail(
    mask: type[Quantised],
    caught: set[str],
    trained: Callable[[Loss], nn.Module],
    audited: Callable[[nn.Module], Audit],
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of the stochastic network
        result = audited(mask(trained(standard)))
    assert result.verdict == "do not trust"
    assert caught <= failures(result)
    assert "outputs are the same with gradients" not in failures(result)


PREDICTED = "gradients predict the change of the margin"


@pytest.mark.parametrize(
    ("mask", "caught"),
    [
        (Probabilities, "outputs are logits"), (CutOff, "gradients exist"),
        (Hashed, PREDICTED), (Decoy, PREDICTED), (Notices, PREDICTED),
        (Notices, "outputs are the same with gradients"),
    ],
)  # fmt: skip
def test_other_masks_fail_by_their_own_check(
    mask: Callable[..., nn.Module],
    caught: str,
    trained: Callable[[Loss], nn.Module],
    digits: Dataset,
) -> None:
    x, y = digits.test.x[:100], digits.test.y[:100]
    others = [trained(adversarial)] * (mask in (Decoy, Notices))
    result = audit(mask(trained(standard), *others), x, y, **HASTY)
    assert caught in failures(result)


def test_a_check_that_cannot_run_is_skipped_with_a_reason(
    trained: Callable[[Loss], nn.Module], digits: Dataset
) -> None:
    options = HASTY | {"threat": Threat("l2", 0.5)}
    result = audit(trained(standard), digits.test.x[:50], digits.test.y[:50], **options)
    assert {check.name: check.figure for check in result.skipped} == {
        "transfer from an undefended model": "no surrogate model was given",
    }
    assert all(check.passed is None for check in result.skipped)
    assert result.numbers()["checks"][-1]["status"] == "skipped"


def test_the_audit_leaves_everything_as_it_was_and_can_be_repeated(
    trained: Callable[[Loss], nn.Module], digits: Dataset
) -> None:
    network = trained(adversarial).train()
    seen: list[tuple[int, int]] = []
    said: list[str] = []

    def progress(done: int, total: int, label: str) -> None:
        seen.append((done, total))
        said.append(label)

    options = HASTY | {"progress": progress}
    state = torch.get_rng_state()
    first, again = (
        audit(network, digits.test.x[:50], digits.test.y[:50], **options) for _ in range(2)
    )
    assert first.numbers() == again.numbers()
    assert torch.equal(state, torch.get_rng_state())
    assert network.training
    assert all(p.grad is None or p.requires_grad for p in network.parameters())
    assert said[0].startswith("audit: about ")
    done, totals = zip(*seen[: len(seen) // 2], strict=True)
    assert list(done) == sorted(done)  # forward passes, so that time left can be estimated
    assert len(set(totals)) == 1
    assert done[-1] <= totals[-1]
    network.eval()


def test_the_audit_leaves_a_model_behind_functions_as_it_was(digits: Dataset) -> None:
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), MLP((64,), 10, width=32)).train()
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    three = 1e3 * F.one_hot(torch.tensor(3), 10)

    def always_three(x: Tensor) -> Tensor:  # so that there are right answers to audit
        return network(x) + three

    threes = torch.full((40,), 3)
    audit(Wrapped(always_three, network), digits.test.x[:40], threes, **HASTY)
    assert all(torch.equal(state[name], t) for name, t in network.state_dict().items())
    assert network.training


def test_killed_and_started_again_it_goes_on_and_says_the_same(
    trained: Callable[[Loss], nn.Module], digits: Dataset, tmp_path: Path
) -> None:
    class Killed(Exception):
        pass

    def kill(_done: int, _total: int, label: str) -> None:
        if "longer" in label:
            raise Killed

    network = trained(adversarial)
    x, y = digits.test.x[:50], digits.test.y[:50]
    with pytest.raises(Killed):
        audit(network, x, y, out=tmp_path, progress=kill, **HASTY)
    finished = {path.name for path in (tmp_path / "batches").iterdir()}
    assert "pgd cross-entropy.0-pgd cross-entropy.00000.safetensors" in finished
    again = audit(network, x, y, out=tmp_path, **HASTY)
    assert again.numbers() == audit(network, x, y, **HASTY).numbers()
    assert finished < {path.name for path in (tmp_path / "batches").iterdir()}
    with pytest.raises(ValueError, match="other attacks"):
        audit(network, x, y, out=tmp_path, **(HASTY | {"steps": 6}))


def test_bad_input_is_refused(trained: Callable[[Loss], nn.Module], digits: Dataset) -> None:
    x, y = digits.test.x[:50], digits.test.y[:50]
    with pytest.raises(ValueError, match="Divide bytes"):
        audit(trained(standard), 255 * x, y)
    with pytest.raises(ValueError, match="0…9"):
        audit(trained(standard), x, y + 5)
    with pytest.raises(ValueError, match="beyond the whole box"):
        audit(trained(standard), x, y, threat=Threat("l2", 128))


def test_a_model_that_is_mostly_wrong_is_not_audited(digits: Dataset) -> None:
    model = Wrapped(lambda x: torch.zeros(len(x), 10) + x.mean())
    with pytest.raises(ValueError, match="at least 30"):
        audit(model, digits.test.x[:20], digits.test.y[:20])


def test_a_function_has_to_be_wrapped(digits: Dataset) -> None:
    with pytest.raises(TypeError, match=r"torch.nn.Module.*taser.models.Wrapped"):
        audit(lambda x: x.flatten(1)[:, :10], digits.test.x[:40], digits.test.y[:40])


def test_it_names_the_accuracy_that_it_believes(
    trained: Callable[[Loss], nn.Module], digits: Dataset
) -> None:
    x, y = digits.test.x[:60], digits.test.y[:60]
    result = audit(trained(adversarial), x, y, **HASTY)
    found = evaluate(trained(adversarial), x, y, threat=THREAT, attacks=["pgd"], n=60)
    assert result.accuracy == accuracy_interval(torch.arange(60) < result.robust)
    assert abs(result.accuracy.value - found.robust_accuracy) <= 0.05
    numbers = json.loads(json.dumps(result.numbers(), allow_nan=False))
    assert numbers["accuracy"] == asdict(result.accuracy)
    assert numbers["clean_accuracy"] == result.n / 60
    accuracy, verdict, *_ = audit_summary(result)
    assert accuracy.startswith(f"Robust accuracy at ℓ∞ ε=0.15: {100 * result.accuracy.value:.1f} %")
    assert verdict.startswith("Verdict: trust (with ")  # few examples: in the same line


def test_what_must_fail_fails_before_a_surrogate_is_trained(
    trained: Callable[[Loss], nn.Module], digits: Dataset, tmp_path: Path
) -> None:
    def train() -> nn.Module:
        raise AssertionError("trained")

    network, x, y = trained(standard), digits.test.x[:50], digits.test.y[:50]
    audit(network, x, y, out=tmp_path, **HASTY)
    for wrong in (
        {"x": 255 * x}, {"y": y + 5}, {"x": x[:20], "y": y[:20]}, {"queries": 0}, {"steps": 0},
        {"out": tmp_path, "steps": 6}, {"surrogate": MLP((1, 8, 8), 3)},
    ):  # fmt: skip
        given = {"x": x, "y": y, "surrogate": train} | HASTY | wrong
        with pytest.raises(ValueError):
            audit(network, **given)
    with pytest.raises(AssertionError, match="trained"):
        audit(network, x, y, surrogate=train, **HASTY)


def test_a_surrogate_learns_its_task(digits: Dataset) -> None:
    for x, held_out in (
        (digits.train.x, digits.test.x),
        (digits.train.x.flatten(1), digits.test.x.flatten(1)),
    ):
        network = undefended(x, digits.train.y, 10, width=8)
        assert not network.training
        assert float((network(held_out).argmax(1) == digits.test.y).float().mean()) > 0.85
