"""The choice of the backend, and what a check of the model does not cover."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cases
import taser
from taser.probes import Margin, Probed
from taser.stein import UnsupportedLayer
from taser.stein._checks import curved_layer


def probed(model: nn.Module, case: cases.Case) -> Probed:
    return Probed(model, Margin(), case.y)


def test_auto_waits_for_curvature_that_it_can_see() -> None:
    """A head of zeros, as in fine-tuning, hides the curvature of the rest of the network."""

    class Bent(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x)

    case = cases.case("mlp")
    model = nn.Sequential(nn.Linear(6, 8), Bent(), nn.Linear(8, 3)).double()
    nn.init.zeros_(model[2].weight)
    penalty = taser.SteinPenalty()
    for _ in range(2):
        penalty(model, case.x, case.y, case.s)
        assert penalty.last is not None
        assert penalty.last.backend == "difference"
        nn.init.normal_(model[2].weight)


@pytest.mark.parametrize("shape", ["(B,)", "(B, m, k)", "tuple"])
def test_auto_takes_outputs_of_any_form(shape: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))

        def forward(self, x: Tensor) -> Any:
            z = self.layers(x)
            return {"(B,)": z[:, 0], "(B, m, k)": z.view(-1, 2, 2), "tuple": (z, x)}[shape]

    def probe(outputs: Any, _y: Tensor | None) -> Tensor:
        z = outputs[0] if isinstance(outputs, tuple) else outputs
        return z.reshape(len(z), -1)[:, 0].square()

    torch.manual_seed(0)
    case, model = cases.case("mlp"), Net().double()
    exact = taser.SteinPenalty(probe, backend="exact", center="none")
    auto = taser.SteinPenalty(probe, center="none", probes=4000)
    values = [p(model, case.x, None, case.s).item() for p in (exact, auto)]
    assert values[1] == pytest.approx(values[0], rel=0.1)  # 4,000 probes are accurate to 2 %


def test_a_layer_that_is_swapped_is_noticed() -> None:
    case = cases.case("relu")
    model, penalty, found = case.model, taser.SteinPenalty(), []
    for activation in (nn.ReLU(), nn.SiLU()):
        model[2], model[4] = activation, activation  # type: ignore[operator]
        penalty(model, case.x, case.y, case.s)
        assert penalty.last is not None
        found.append(penalty.last.backend)
    assert found == ["piecewise_linear", "difference"]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((nn.GroupNorm(2, 4), nn.ReLU()), "reverse"),
        ((nn.SiLU(), nn.MaxPool2d(2)), "reverse"),
        ((nn.GroupNorm(2, 4), nn.SiLU()), "difference"),
        ((nn.Hardtanh(-9.0, 9.0), nn.SiLU()), "difference"),  # no activation is that large
    ],
)
def test_auto_takes_no_second_difference_across_kinks(layers: tuple, expected: str) -> None:
    """On a trained network with ReLU and GroupNorm its gradient is mostly noise."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(2))
    model = nn.Sequential(model, nn.Flatten(), nn.Linear(16, 3))
    x = torch.randn(4, 2, 6, 6)
    penalty = taser.SteinPenalty()
    penalty(model.train(), x, torch.tensor([0, 1, 2, 1]), -x)
    assert penalty.last is not None
    assert penalty.last.backend == expected


def test_auto_works_with_frozen_parameters() -> None:
    case = cases.case("relu")
    expected = taser.SteinPenalty()(case.model, case.x, case.y, case.s).detach()
    value = taser.SteinPenalty()(case.model.requires_grad_(False), case.x, case.y, case.s)
    torch.testing.assert_close(value.detach(), expected)


def test_a_check_without_a_graph_does_not_replace_one_with() -> None:
    class Native(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.aten.native_layer_norm(x, [6], None, None, 1e-5)[0]

    case = cases.case("mlp")
    model = nn.Sequential(Native(), case.model)
    penalty = taser.SteinPenalty(backend="reverse")
    with torch.no_grad():
        penalty(model, case.x, case.y, case.s)
    with pytest.raises(UnsupportedLayer, match="silently wrong"):
        penalty(model, case.x, case.y, case.s)


def test_one_example_is_not_enough_to_check_many() -> None:
    """Three channels of two values have statistics of their own, which couple no other example."""
    case = cases.case("mlp")
    norm = nn.BatchNorm1d(3, track_running_stats=False).double()
    model = nn.Sequential(nn.Unflatten(1, (3, 2)), norm, nn.Flatten(), case.model)
    penalty = taser.SteinPenalty(backend="difference")
    penalty(model, case.x[:1], case.y[:1], case.s[:1])
    with pytest.raises(UnsupportedLayer, match="couples the examples"):
        penalty(model, case.x, case.y, case.s)


def test_piecewise_linear_refuses_a_network_that_bends_and_names_the_layer() -> None:
    case = cases.case("batchnorm")
    with pytest.raises(UnsupportedLayer, match=r"layer '2' \(SiLU\)"):
        taser.stein_residual(probed(case.model, case), case.x, case.s, backend="piecewise_linear")

    class Hidden(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.square().sum(1), x.sum(1), x[:, 0]], 1)

    mlp = cases.case("mlp")
    with pytest.raises(UnsupportedLayer, match="an operation in Hidden"):
        taser.stein_residual(probed(Hidden(), mlp), mlp.x, mlp.s, backend="piecewise_linear")


def holding(module: nn.Module) -> nn.Module:
    """An identity that holds a module which does not affect its outputs."""
    layer = nn.Identity()
    layer.held = module
    return layer


STRAIGHT: list[nn.Module] = [
    nn.ZeroPad1d(1), nn.ZeroPad2d(1), nn.ConstantPad2d(1, 0.5), nn.ReflectionPad2d(1),
    nn.ReplicationPad2d(1), nn.CircularPad2d(1), nn.PixelShuffle(2), nn.PixelUnshuffle(2),
    nn.ChannelShuffle(2), nn.Sequential(nn.Unfold(2), nn.Fold((6, 6), 2)), nn.Threshold(0.1, 0.0),
    nn.Softshrink(), nn.Hardshrink(), nn.Sequential(),
    nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)),
    nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 1)),
    holding(nn.CrossEntropyLoss()), holding(nn.ModuleList()),
]  # fmt: skip


@pytest.mark.parametrize("layer", STRAIGHT, ids=lambda layer: type(layer).__name__)
def test_auto_recognises_piecewise_linear_layers(layer: nn.Module) -> None:
    """The exact backend agrees with second derivatives."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), layer, nn.ReLU(), nn.Flatten())
    x, y = torch.randn(4, 2, 6, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    model = nn.Sequential(body, nn.Linear(body(x[:1].float()).shape[1], 3)).double().eval()
    penalty = taser.SteinPenalty()
    value = penalty(model, x, y, -x)
    assert penalty.last is not None
    assert penalty.last.backend == "piecewise_linear"
    torch.testing.assert_close(value, taser.SteinPenalty(backend="reverse")(model, x, y, -x))


def test_a_product_of_two_linear_maps_bends() -> None:
    assert curved_layer(nn.Sequential(nn.Bilinear(2, 2, 3))) == "layer '0' (Bilinear)"


@pytest.mark.parametrize(
    ("name", "operator", "expected"),
    [
        ("relu", "langevin", "piecewise_linear"),
        ("relu", "first_order", "difference"),
        ("batchnorm", "langevin", "difference"),
        ("transformer", "first_order", "difference"),
    ],
)
def test_auto_says_what_it_chose(
    name: str, operator: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = cases.case(name)
    penalty = taser.SteinPenalty(operator=operator)  # type: ignore[arg-type]
    with caplog.at_level("INFO", logger="taser"):
        for _ in range(2):
            penalty(case.model, case.x, case.y, case.s)
    assert penalty.last is not None
    assert penalty.last.backend == expected
    assert [expected in message for message in caplog.messages] == [True]  # said once
