"""A prepared model is the same function, and where it would not be it is left alone."""

import copy

import pytest
import torch
from torch import Tensor, nn

from attacks.victims import digits, seeded, undefended
from taser.attacks import Model, cross_entropy, input_gradient, margin
from taser.evaluation._attack_loop import VALUES, _same, prepare
from taser.models import Wrapped, build
from taser.models._copies import FoldedModel


def done_to(prepared: Model) -> tuple[bool, bool]:
    """Whether BatchNorms were folded, and whether images are passed on with channels innermost."""
    assert isinstance(prepared, nn.Module)
    return isinstance(prepared.inner, FoldedModel), bool(prepared.channels_last)


def same(one: Model, two: Model, x: Tensor, y: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(one(x), two(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        *(input_gradient(f, x, y, cross_entropy) for f in (one, two)), rtol=1e-3, atol=1e-4
    )


def trained_resnet() -> nn.Module:
    """A small ResNet whose BatchNorms have seen data; smooth, for rounding moves kinks of ReLU."""
    torch.manual_seed(0)
    model = build("resnet18", classes=10, shape=(1, 8, 8), width=4, activation="silu")
    with torch.no_grad():
        for _ in range(3):
            model.train()(torch.rand(32, 1, 8, 8, generator=seeded()))
    return model.eval()


@pytest.mark.parametrize("make", [lambda: undefended(norm=True), trained_resnet])
def test_batch_norms_are_folded_and_outputs_stay(make) -> None:
    model = make()
    x, y = digits(20)
    kept = copy.deepcopy(model.state_dict())
    prepared = prepare(model, x, y)
    assert done_to(prepared) == (True, True)
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    same(model, prepared, x, y)
    more = torch.rand(VALUES // 64 + 7, 1, 8, 8, generator=seeded())
    same(model, prepared, more, torch.zeros(len(more), dtype=torch.int64))
    assert all(torch.equal(kept[name], t) for name, t in model.state_dict().items())


def test_a_model_in_train_mode_is_prepared_in_evaluation_mode() -> None:
    model = copy.deepcopy(undefended(norm=True)).train()
    x, y = digits(20)
    prepared = prepare(model, x, y)
    assert model.training
    same(undefended(norm=True), prepared, x, y)


def test_vectors_have_no_channels() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()
    prepared = prepare(model, torch.rand(6, 4), torch.zeros(6, dtype=torch.int64))
    assert done_to(prepared) == (True, False)


def test_kinks_at_flat_pixels_do_not_stop_it() -> None:
    # one function, two gradients at zero: ReLU's is 0 there, clamping's is 1
    def relu(x: Tensor) -> Tensor:
        return x.relu().flatten(1)[:, :10]

    def clamped(x: Tensor) -> Tensor:
        return x.clamp(min=0).flatten(1)[:, :10]

    x, y = torch.zeros(8, 1, 8, 8), torch.arange(8)
    assert not input_gradient(relu, x, y, margin).equal(input_gradient(clamped, x, y, margin))
    assert _same(relu, clamped, x, y)
    assert not _same(relu, lambda x: clamped(x).detach() + 0 * relu(x), x, y)


class Branching(nn.Module):
    """Python that tracing cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = copy.deepcopy(undefended(norm=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if float(x.detach().mean()) < 0.9 else self.inner(1 - x)


class Hiding(nn.Module):
    """No gradient reaches the network; tracing would forget that."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = copy.deepcopy(undefended(norm=True))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.inner(x)
        return logits + 1e-3 * x.flatten(1)[:, :10]


class Viewing(nn.Module):
    """Needs images with channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(144, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x))
        return self.head(h.view(h.size(0), -1))


class Noises(nn.Module):
    """A buffer of five dimensions, which has no channels-last format."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.register_buffer("noises", torch.zeros(2, 1, 1, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return sum(self.inner(x + noise) for noise in self.noises)


@pytest.mark.parametrize(
    ("make", "folded", "channels_last"),
    [
        (Branching, False, True),
        (Hiding, False, True),
        (Viewing, True, False),
        (Noises, False, False),
    ],
)
def test_what_cannot_be_done_is_not_done(make, folded: bool, channels_last: bool) -> None:
    x, y = digits(20)
    model = make().eval()
    prepared = prepare(model, x, y)
    assert done_to(prepared) == (folded, channels_last)
    same(model, prepared, x, y)


def test_functions_and_modules_that_refuse_copies_are_used_as_they_are() -> None:
    x, y = digits(4)

    class Single(nn.Module):
        def __deepcopy__(self, memo: dict) -> None:
            raise TypeError("one of a kind")

    for alone in (Single(), Wrapped(undefended().forward, undefended())):
        assert prepare(alone, x, y) is alone
