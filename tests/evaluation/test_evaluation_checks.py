"""Bad input: an error where figures would mean nothing, a finding where they are suspect."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attacks.victims import digits, undefended
from taser.attacks import RestartedPGD, Threat
from taser.evaluation import evaluate
from taser.evaluation._model_checks import _half_distance, check_data, check_model

THREAT = Threat("linf", 0.05)


def findings(model: Callable[[Tensor], Tensor]) -> set[str]:
    return {finding.name for finding in check_model(model, *digits(10))[1]}


def test_an_honest_model_has_no_findings() -> None:
    x, y = digits(10)
    assert check_model(undefended(norm=True), x, y) == (10, [])
    assert check_data(x, y, THREAT) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (255 * x, y), "Divide bytes by 255"),
        (lambda x, y: (x - 1e-3, y), r"lie in \[0, 1\]"),
        (lambda x, y: ((255 * x).to(torch.uint8), y), "divide bytes by 255"),
        (lambda x, y: (x.masked_fill(x > 0.9, torch.nan), y), "finite"),
        (lambda x, y: (x, y.float()), "class numbers"),
        (lambda x, y: (x, y + 9), "the model's classes"),
        (lambda x, y: (x, y - 1), "the model's classes"),
        (lambda x, y: (x, y[:-1]), "one row an example"),
    ],
)
def test_wrong_data_is_refused(change: Callable, message: str) -> None:
    x, y = change(*digits(30))
    with pytest.raises(ValueError, match=message):
        evaluate(undefended(), x, y, threat=THREAT, attacks=("fgsm",))


def test_every_label_is_checked_though_few_examples_are_tried() -> None:
    x, y = digits(60)
    y = y.clone()
    y[-1] = 10
    with pytest.raises(ValueError, match="0…9"):
        check_model(undefended(), x, y)


def test_rounding_at_the_edge_of_the_box_is_forgiven() -> None:
    x, y = digits(10)
    assert check_data(x + 5e-7, y, THREAT) == []


def test_tables_have_no_box() -> None:
    x = torch.randn(5, 3) * 100
    assert check_data(x, torch.zeros(5, dtype=torch.int64), Threat("l2", 8.0, None, None)) == []


@pytest.mark.parametrize(
    ("norm", "epsilon", "message"), [("linf", 8, "8/255"), ("l2", 128, "128/255")]
)
def test_epsilon_in_other_units_is_refused(norm: str, epsilon: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_data(*digits(5), Threat(norm, epsilon))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "threat", [Threat("linf", 0.5), Threat("l2", 8), Threat("l2", 8, None, None)]
)
def test_an_epsilon_that_reaches_other_classes_is_a_finding(threat: Threat) -> None:
    (finding,) = check_data(*digits(100), threat)
    assert finding.name == "epsilon"
    assert "no model can be right around both" in finding.message


def test_half_the_distance_to_another_class_bounds_the_radius() -> None:
    x, y = torch.tensor([[0.0, 0.0], [0.4, 0.3], [0.1, 0.0]]), torch.tensor([0, 1, 0])
    for norm, nearest in (("linf", [0.4, 0.3, 0.3]), ("l2", [0.5, 0.18**0.5, 0.18**0.5])):
        found = _half_distance(x, y, Threat(norm, 0.1))  # type: ignore[arg-type]
        torch.testing.assert_close(found.float(), torch.tensor(nearest) / 2)


class Wrapped(nn.Module):
    """A network with a change of its outputs."""

    def __init__(self, after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.after = copy.deepcopy(undefended()), after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(x))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (lambda z: z.masked_fill(z > 3, torch.nan), "NaN or infinity"),
        (lambda z: z[:, :1], "one number"),
        (lambda z: z.flatten(), "logits"),
        (lambda z: (z, z), "logits"),
    ],
)
def test_models_without_usable_logits_are_refused(after: Callable, message: str) -> None:
    x, y = digits(20)
    with pytest.raises(ValueError, match=message):
        evaluate(Wrapped(after).eval(), x, y, threat=THREAT, attacks=("fgsm",))


@pytest.mark.parametrize(
    ("after", "finding"),
    [
        (lambda z: z.softmax(1), "probabilities"),
        (lambda z: z + torch.randn_like(z), "stochastic"),
        (lambda z: z - z.mean(0), "coupled"),
    ],
)
def test_odd_models_give_findings(after: Callable, finding: str) -> None:
    assert findings(Wrapped(after).eval()) == {finding}


class Adapts(Wrapped):
    """Moves its input along a gradient of its own before it answers."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(self.inner(x).logsumexp(1).sum(), x)
        return self.inner(x.detach() + 0.01 * gradient.sign())


def test_a_model_that_differentiates_when_called_gives_a_finding() -> None:
    assert findings(Adapts(lambda z: z).eval()) == {"dynamic", "no gradient"}


def test_evaluation_keeps_the_random_state() -> None:
    before = torch.get_rng_state()
    findings(Wrapped(lambda z: z + torch.randn_like(z)).eval())
    assert torch.equal(torch.get_rng_state(), before)


def test_train_mode_gives_a_finding_and_stays() -> None:
    model = copy.deepcopy(undefended(norm=True)).train()
    assert findings(model) == {"train mode"}
    assert model.training


def test_batch_norm_without_statistics() -> None:
    model = copy.deepcopy(undefended(norm=True))
    fresh = copy.deepcopy(model)
    fresh[1].reset_running_stats()
    assert findings(fresh) == {"BatchNorm"}
    model[1] = nn.BatchNorm2d(8, track_running_stats=False).eval()
    with pytest.raises(ValueError, match="running statistics"):
        findings(model)


def test_an_epsilon_is_checked_where_the_data_come_class_by_class() -> None:
    """The first two hundred are of one class, and have no room to another."""
    x = torch.cat([torch.full((300, 2), 0.4), torch.full((300, 2), 0.5)])
    y = torch.arange(600) // 300
    found = evaluate(nn.Linear(2, 2), x, y, threat=Threat("linf", 0.1), attacks=["noise"], n=600)
    assert "epsilon" in {finding.name for finding in found.findings}


class Counting(nn.Module):
    """Scales its input by a running mean, which it updates in place or replaces at every call."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.network, self.in_place = undefended(), in_place
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(1, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.network(x * (1 + 0.1 * self.mean))
        self.calls += 1
        if self.in_place:
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        else:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return logits


@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_that_changes_its_own_buffers_is_evaluated_and_restored(in_place: bool) -> None:
    model = Counting(in_place).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attacks = [RestartedPGD(THREAT, steps=3, restarts=1)]
    x, y = digits(20)
    found, plain = (
        evaluate(one, x, y, threat=THREAT, attacks=attacks, n=20) for one in (model, undefended())
    )
    assert found.findings == ()  # neither stochastic nor coupled: each call sees the same buffers
    assert torch.equal(found.robust, plain.robust)  # whose mean is zero
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_a_range_that_is_not_the_inputs_is_answered_with_theirs() -> None:
    x, y = digits(20)
    with pytest.raises(ValueError, match=r"true range.*low=-2, high=2.*are for tables"):
        check_data(4 * x - 2, y, THREAT)
