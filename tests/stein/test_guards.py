"""What would be silently wrong is put right, or refused by name."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import cases
import taser
from taser.probes import Margin, Probed
from taser.stein import UnsupportedLayer
from taser.stein.curvature import bending_layer
from taser.stein.guards import Backend, frozen
from taser.stein.plain_kernels import instance_norm, layer_norm, plain_kernels

DIFFERENTIATING: list[Backend] = ["reverse", "exact"]


def residual(model: nn.Module, case: cases.Case, **options: object) -> Tensor:
    f = Probed(model, Margin(), case.y)
    return taser.stein_residual(f, case.x, case.s, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", [*DIFFERENTIATING, "difference"])
def test_train_mode_batchnorm_is_refused_where_the_model_is_not_ours(backend: Backend) -> None:
    case = cases.case("batchnorm")
    case.model.train()
    with pytest.raises(UnsupportedLayer, match=r"layer '1' normalises by the statistics"):
        residual(case.model, case, backend=backend)
    margin = Margin()
    with pytest.raises(UnsupportedLayer, match="layer 'f'"):
        taser.stein_residual(
            lambda x: margin(case.model(x), case.y), case.x, case.s, backend=backend
        )


def test_train_mode_batchnorm_is_frozen_by_the_penalty() -> None:
    case = cases.case("batchnorm")
    values = []
    for mode in (False, True):
        case.model.train(mode)
        penalty = taser.SteinPenalty(batchnorm="running")
        values.append(penalty(case.model, case.x, case.y, case.s))
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=0)


def test_batchnorm_without_statistics_cannot_be_frozen() -> None:
    case = cases.case("batchnorm")
    case.model[1] = nn.BatchNorm2d(4, track_running_stats=False).double()  # type: ignore[operator]
    for backend in ("difference", "reverse", "auto"):
        with pytest.raises(UnsupportedLayer, match=r"layer '1'.*without running statistics"):
            taser.SteinPenalty(backend=backend)(case.model, case.x, case.y, case.s)


def test_frozen_sync_batchnorm_is_an_affine_map_like_any_other() -> None:
    case = cases.case("batchnorm")
    plain = taser.SteinPenalty(backend="reverse")(case.model, case.x, case.y, case.s)
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(case.model)
    assert any(isinstance(module, nn.SyncBatchNorm) for module in synced.modules())
    other = taser.SteinPenalty(backend="reverse")(synced.train(), case.x, case.y, case.s)
    torch.testing.assert_close(other, plain)


@pytest.mark.parametrize("backend", DIFFERENTIATING)
def test_a_fused_norm_that_escapes_replacement_is_refused(backend: Backend) -> None:
    class Native(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.aten.native_layer_norm(x, [6], None, None, 1e-5)[0]

    case = cases.case("mlp")
    model = nn.Sequential(nn.Identity(), Native(), *case.model)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedLayer, match=r"layer '1'.*third derivative is silently wrong"):
        residual(model, case, backend=backend)
    assert residual(model, case, backend="difference").shape == (cases.BATCH,)
    with torch.no_grad():  # values alone are right
        values = [
            residual(model, case, backend=b, generator=torch.Generator().manual_seed(0))
            for b in ("reverse", "difference")
        ]
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=1e-5)


def test_fused_attention_is_switched_to_the_math_kernel() -> None:
    case = cases.case("transformer")
    x = case.x.clone().requires_grad_()
    (g,) = torch.autograd.grad(case.model(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative"):  # what would happen without the guard
        torch.autograd.grad(g.sum(), x)
    assert torch.isfinite(residual(case.model, case)).all()


def test_attention_that_insists_on_a_fused_kernel_is_refused() -> None:
    class Insists(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = x[:, None]
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                return F.scaled_dot_product_attention(q, q, q)[:, 0]

    case = cases.case("attention")
    model = nn.Sequential(Insists(), case.model)
    with pytest.raises(UnsupportedLayer, match=r"layer '0' runs a fused attention kernel"):
        residual(model, case)
    assert residual(model, case, backend="difference").shape == (cases.BATCH,)


@pytest.mark.parametrize("dims", [(8,), (5, 8)])
@pytest.mark.parametrize("affine", [True, False])
def test_plain_layer_norm_is_layer_norm(dims: tuple[int, ...], affine: bool) -> None:
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    weight, bias = (torch.rand(dims), torch.rand(dims)) if affine else (None, None)
    expected = F.layer_norm(x, dims, weight, bias)
    torch.testing.assert_close(layer_norm(x, dims, weight, bias), expected)
    with plain_kernels():
        torch.testing.assert_close(torch.layer_norm(x, dims, weight, bias), expected)


@pytest.mark.parametrize("running", [True, False])
def test_plain_instance_norm_is_instance_norm(running: bool) -> None:
    x = torch.randn(3, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    statistics = (torch.rand(4), torch.rand(4) + 0.5) if running else (None, None)
    arguments = (*statistics, torch.rand(4), torch.rand(4), not running)
    torch.testing.assert_close(instance_norm(x, *arguments), F.instance_norm(x, *arguments))


@pytest.mark.parametrize("backend", [*DIFFERENTIATING, "piecewise_linear"])
def test_compiled_models_need_the_difference_backend(backend: Backend) -> None:
    case = cases.case("relu")
    compiled = torch.compile(case.model, backend="eager")
    with pytest.raises(UnsupportedLayer, match="backend='difference'"):
        taser.SteinPenalty(backend=backend)(compiled, case.x, case.y, case.s)
    for model in (compiled, nn.Sequential(nn.Identity(), compiled)):  # type: ignore[arg-type]
        penalty = taser.SteinPenalty()
        penalty(model, case.x, case.y, case.s)
        assert penalty.last is not None
        assert penalty.last.backend == "difference"


def test_a_sharded_model_needs_the_difference_backend() -> None:
    class FSDPLinear(nn.Linear):  # what torch's fully_shard makes of a Linear
        pass

    case = cases.case("mlp")
    model = nn.Sequential(FSDPLinear(6, 6).double(), case.model)
    with pytest.raises(UnsupportedLayer, match="layer '0' is sharded"):
        taser.SteinPenalty(backend="reverse")(model, case.x, case.y, case.s)
    taser.SteinPenalty(backend="difference")(model, case.x, case.y, case.s)


def test_half_precision_parameters_are_refused_by_name() -> None:
    case = cases.case("mlp")
    with pytest.raises(UnsupportedLayer, match=r"'0\.weight' is torch\.bfloat16"):
        taser.SteinPenalty()(case.model.bfloat16(), case.x.float(), case.y, case.s.float())


def test_noise_in_the_model_is_refused_by_the_difference_alone() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 0.1 * torch.randn_like(x)

    case = cases.case("mlp")
    model = nn.Sequential(Noisy(), case.model)
    with pytest.raises(UnsupportedLayer, match=r"layer '0' draws random numbers"):
        residual(model, case, backend="difference")
    assert torch.isfinite(residual(model, case, backend="reverse")).all()


class Checkpointed(nn.Module):
    """A network that keeps no activations of its middle part."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.SiLU())
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, self.stem(x), use_reentrant=True))


@pytest.mark.parametrize("backend", ["difference", "auto"])
def test_reentrant_checkpointing_is_refused(backend: str) -> None:
    case, model = cases.case("mlp"), Checkpointed().double()
    with pytest.raises(UnsupportedLayer, match="recomputes a part of itself"):
        taser.SteinPenalty(backend=backend)(  # type: ignore[arg-type]
            model, case.x, case.y, case.s
        )


def test_an_operation_in_place_at_the_start_leaves_the_inputs_alone() -> None:
    case = cases.case("mlp")
    for backend in ("reverse", "exact", "difference", "auto"):
        values = []
        for inplace in (False, True):
            x = case.x.clone()
            model = nn.Sequential(nn.SiLU(inplace=inplace), case.model)
            values.append(
                taser.SteinPenalty(backend=backend)(  # type: ignore[arg-type]
                    model, x, case.y, case.s
                )
            )
            assert torch.equal(x, case.x)
        torch.testing.assert_close(values[0], values[1])


def test_auto_waits_for_curvature_that_it_can_see() -> None:
    """A head of zeros, as in fine-tuning, hides what the rest of the network is."""

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

    case, model = cases.case("mlp"), Net().double()
    exact = taser.SteinPenalty(probe, backend="exact", center="none")
    auto = taser.SteinPenalty(probe, center="none", probes=4000)
    values = [p(model, case.x, None, case.s).item() for p in (exact, auto)]
    assert values[1] == pytest.approx(values[0], rel=0.5)


def test_auto_works_with_frozen_parameters() -> None:
    case = cases.case("relu")
    expected = taser.SteinPenalty()(case.model, case.x, case.y, case.s).detach()
    value = taser.SteinPenalty()(case.model.requires_grad_(False), case.x, case.y, case.s)
    torch.testing.assert_close(value.detach(), expected)


def test_a_look_without_a_graph_does_not_vouch_for_one_with() -> None:
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


def test_one_example_does_not_vouch_for_many() -> None:
    case = cases.case("mlp")
    norm = nn.BatchNorm1d(6, track_running_stats=False).double()
    model = nn.Sequential(nn.Unflatten(1, (6, 1)), norm, nn.Flatten(), case.model)
    penalty = taser.SteinPenalty(backend="difference")
    with pytest.raises((UnsupportedLayer, ValueError)):
        penalty(model, case.x[:1], case.y[:1], case.s[:1])
    with pytest.raises(UnsupportedLayer, match="couples the examples"):
        penalty(model, case.x, case.y, case.s)


def test_piecewise_linear_refuses_a_network_that_bends_and_names_the_layer() -> None:
    case = cases.case("batchnorm")
    with pytest.raises(UnsupportedLayer, match=r"layer '2' \(SiLU\)"):
        residual(case.model, case, backend="piecewise_linear")

    class Hidden(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.square().sum(1), x.sum(1), x[:, 0]], 1)

    mlp = cases.case("mlp")
    with pytest.raises(UnsupportedLayer, match="an operation in Hidden"):
        residual(Hidden(), mlp, backend="piecewise_linear")


def holding(module: nn.Module) -> nn.Module:
    """A layer that does nothing and holds a module that has no part in its outputs."""
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
def test_auto_knows_what_does_not_bend(layer: nn.Module) -> None:
    """And the exact route agrees with second derivatives."""
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
    assert bending_layer(nn.Sequential(nn.Bilinear(2, 2, 3))) == "layer '0' (Bilinear)"


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


def test_frozen_restores_every_mode_even_after_an_error() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    model[1][0].eval()
    modes = [module.training for module in model.modules()]
    with frozen(model):
        assert not any(module.training for module in model.modules())
    with pytest.raises(RuntimeError, match="shapes"), frozen(model):
        model(torch.ones(2, 3) @ torch.ones(2, 3))
    assert [module.training for module in model.modules()] == modes
