"""A regulariser that is attached to its model reuses the loss's own forward, or makes its own."""

import copy
import gc
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import taser

THREAT = taser.Threat("linf", 0.1)


def network(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(), nn.Dropout(dropout),
        nn.Flatten(), nn.Linear(64, 3),
    ).double()  # fmt: skip


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(8, 1, 4, 4, generator=generator).double(), torch.arange(8) % 3


def regulariser(**options: object) -> taser.Taser:
    score = taser.scores.DenoisingScore(lambda x, _: torch.tanh(x), 0.3)
    return taser.Taser(score, threat=THREAT, step=1e-6, **{"fraction": 1.0, "every": 1, **options})  # type: ignore[arg-type]


def gradients(
    model: nn.Module, robust: taser.Taser, x: Tensor, y: Tensor
) -> tuple[Tensor, list[Tensor]]:
    loss = F.cross_entropy(model(x), y) + robust(model, x, y)
    return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


class Forwards:
    """Counts the rows that pass through the first layer."""

    def __init__(self, model: nn.Sequential) -> None:
        self.rows: list[int] = []
        model[0].register_forward_pre_hook(lambda _, inputs: self.rows.append(len(inputs[0])))


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_same_loss_and_gradient_with_fewer_forwards(fraction: float) -> None:
    """A one-sided difference of step 1e-6 in float64 is right to 1e-6, its rounding to 1e-9."""
    (x, y), found = batch(), []
    for attached in (False, True):
        model, robust = network(), regulariser(fraction=fraction)
        if attached:
            robust.attach(model)
        robust(model, x, y)  # the first call checks the layers
        count = Forwards(model)
        robust.calls, robust._generator = 0, torch.Generator().manual_seed(3)
        value, gradient = gradients(model, robust, x, y)
        found.append((value, gradient, sum(count.rows)))
        robust.release()
        assert not model._forward_hooks
        assert not model._forward_pre_hooks
    (own, own_gradient, many), (shared, shared_gradient, few) = found
    torch.testing.assert_close(shared, own, rtol=1e-5, atol=1e-7)
    for one, two in zip(shared_gradient, own_gradient, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    part = int(8 * fraction)
    assert many == 8 + 8 + part + 2 * part  # loss, statistics, direction, both ends
    assert few <= 8 + part + part + 4  # loss, direction, one end, four that are compared once


def other_x(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x + 1), y)


def changed_in_place(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x.add_(0.5)), y)
    x.sub_(0.5)
    return loss


def without_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return F.cross_entropy(model(x), y)


def backward_first(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss.detach()


def at_older_weights(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y).detach()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    return loss


def at_older_weights_by_data(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """As older code changes weights, which autograd does not count."""
    loss = F.cross_entropy(model(x), y).detach()
    for parameter in model.parameters():
        parameter.data.mul_(1.01)
    return loss


def with_other_weights_put_in(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), y).detach()
    for parameter in model.parameters():
        parameter.data = 1.01 * parameter.data
    return loss


@pytest.mark.parametrize(
    "loss",
    [
        other_x, changed_in_place, without_gradient, backward_first, at_older_weights,
        at_older_weights_by_data, with_other_weights_put_in,
    ],
)  # fmt: skip
def test_a_forward_of_something_else_is_not_used(
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor],
) -> None:
    x, y = batch()
    model, robust = network(), regulariser()
    robust.attach(model)
    robust(model, x, y)
    loss(model, x, y)
    found = robust(model, x, y)
    robust.release()
    expected = regulariser()(model, x, y)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    found.backward()


@pytest.mark.parametrize("first", [False, True])
def test_a_forward_with_dropout_is_not_used(first: bool) -> None:
    """Neither its outputs nor, where dropout comes first, the statistics of BatchNorm."""
    x, y = batch()
    model, robust = network(dropout=0.5), regulariser()
    if first:
        model = nn.Sequential(nn.Dropout(0.5), *network())
    robust.attach(model)
    robust(model, x, y)
    model(x)
    found = robust(model, x, y)
    robust.release()
    torch.testing.assert_close(found, regulariser()(model, x, y), rtol=1e-12, atol=0)


def test_copies_of_the_model_are_not_recorded() -> None:
    x, y = batch()
    model, robust = network(), regulariser()
    robust.attach(model)
    model(x)
    teacher = copy.deepcopy(model)
    pickled = pickle.loads(pickle.dumps(model))
    teacher(x)
    pickled(x)
    assert robust._recorder is not None
    assert robust._recorder.shared_pass(model, x) is not None  # still the model's own
    assert copy.deepcopy(robust)._recorder is None
    torch.testing.assert_close(robust(teacher, x, y), regulariser()(teacher, x, y))


def test_the_end_of_a_regulariser_takes_its_hooks_off() -> None:
    model = network()
    robust = regulariser().attach(model)
    assert len(model._forward_hooks) == 1
    del robust
    gc.collect()
    assert not model._forward_hooks


def test_an_explicit_shared_pass_has_precedence() -> None:
    x, y = batch()
    model, robust = network(), regulariser()
    robust.attach(model)
    with taser.SharedPass(model) as shared:
        shared.outputs = model(x)
    assert len(shared.statistics) == 1
    robust(model, x, y, shared=shared)


def test_two_losses_of_one_batch_in_pieces() -> None:
    """Gradient accumulation: each piece has its own forward, penalty and backward."""
    x, y = batch()
    model, robust = network(), regulariser()
    robust.attach(model)
    for rows in (slice(0, 4), slice(4, 8)):
        piece, labels = x[rows], y[rows]
        (F.cross_entropy(model(piece), labels) + robust(model, piece, labels)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_each_of_several_forwards_is_found_again() -> None:
    """As in TRADES, where the attacked points come last, and in sums over pieces of a batch."""
    x, y = batch()
    one, two = x[:4].clone(), x[4:].clone()
    model, robust = network(), regulariser()
    robust.attach(model)
    model(one)
    robust(model, one, y[:4])  # the first call checks the layers, and compares the outputs
    loss = sum(F.cross_entropy(model(points), y[:4]) for points in (one, two, one + 0.1))
    count = Forwards(model)
    penalty = robust(model, one, y[:4]) + robust(model, two, y[4:])
    assert sum(count.rows) == 2 * (4 + 4)  # direction and one end, no forward for statistics
    (loss + penalty).backward()
    assert robust._recorder is not None
    assert not robust._recorder._passes  # the backward frees what it held
    expected = regulariser()(model, one, y[:4]) + regulariser()(model, two, y[4:])
    torch.testing.assert_close(penalty, expected, rtol=1e-5, atol=0)


def test_only_the_last_few_forwards_are_held() -> None:
    """Graphs take memory; after a change of the weights they are of no use."""
    x, _ = batch()
    model, robust = network(), regulariser()
    robust.attach(model)
    for _ in range(20):
        model(x)
    assert robust._recorder is not None
    assert len(robust._recorder._passes) == 4
    with torch.no_grad():
        model[0].weight.mul_(1.01)
    model(x)
    assert len(robust._recorder._passes) == 1


def test_a_model_that_is_compiled_later_is_not_recorded() -> None:
    """And the hooks break no graph."""
    x, y = batch()
    model, robust = network(), regulariser()
    robust.attach(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    loss = F.cross_entropy(compiled(x), y)
    assert robust._recorder is not None
    assert not robust._recorder._passes
    penalty = robust(model, x, y)
    (loss + penalty).backward()
    torch.testing.assert_close(penalty, regulariser()(model, x, y), rtol=1e-12, atol=0)
