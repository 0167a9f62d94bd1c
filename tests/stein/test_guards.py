"""What would be silently wrong is put right, or refused by name."""

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import cases
import taser
from taser.probes import Margin, Probed
from taser.stein import UnsupportedLayer
from taser.stein._checks import Backend, instance_norm, layer_norm, plain_kernels
from taser.stein._model_state import eval_mode

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
    with pytest.raises(UnsupportedLayer, match=r"layer '0' has parameters in torch\.bfloat16"):
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
    """A network that keeps no activations of its block, or, with reentrant=None, all of them."""

    def __init__(self, stem: nn.Module, dropout: float = 0.5) -> None:
        super().__init__()
        self.stem = stem
        self.block = nn.Sequential(
            nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(dropout), nn.SiLU()
        )
        self.head = nn.Linear(6, 3)
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        if self.reentrant is None:
            return self.head(self.block(h))
        return self.head(checkpoint(self.block, h, use_reentrant=self.reentrant))


@pytest.mark.parametrize("backend", ["difference", "reverse"])
@pytest.mark.parametrize("stem", [nn.Identity(), nn.Linear(6, 6)], ids=["first", "later"])
def test_activation_checkpointing_changes_nothing(backend: Backend, stem: nn.Module) -> None:
    """A block is neither run again in training mode nor, as the first, without its gradient."""
    case, found = cases.case("mlp"), []
    torch.manual_seed(0)
    network = Checkpointed(stem).double().train()
    for reentrant in (None, False, True):
        model = copy.deepcopy(network)
        model.reentrant = reentrant
        taser.SteinPenalty(backend=backend)(model, case.x, case.y, case.s).backward()
        found.append([p.grad for p in model.parameters()])
        assert torch.equal(model.block[1].running_mean, network.block[1].running_mean)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_forward_of_the_loss_is_shared_as_far_as_it_is_right(
    reentrant: bool,
) -> None:
    """Statistics from inside of a checkpoint have no graph, or one that is made anew."""
    case, found = cases.case("mlp"), []
    torch.manual_seed(0)
    model = Checkpointed(nn.Linear(6, 6), dropout=0.0).double().train()
    model.reentrant = reentrant
    for attached in (False, True):
        penalty = taser.SteinPenalty(operator="first_order", step=1e-6)
        if attached:
            penalty.attach(model)
        model.zero_grad()
        loss = F.cross_entropy(model(case.x), case.y) + penalty(model, case.x, case.y, case.s)
        loss.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        penalty.release()
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_a_noise_layer_that_rests_is_no_noise() -> None:
    case = cases.case("mlp")
    model = nn.Sequential(nn.RReLU(), nn.Dropout(0.5), case.model).eval()
    expected = residual(model, case, backend="difference", generator=generator())
    with torch.inference_mode():
        found = residual(model, case, backend="difference", generator=generator())
    torch.testing.assert_close(found, expected.detach())


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("backend", ["difference", "reverse", "auto"])
def test_statistics_of_the_batch_written_by_hand_are_found(backend: str) -> None:
    class Standardised(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean(0)) / x.std(0)

    case = cases.case("mlp")
    model = nn.Sequential(Standardised(), case.model)
    with pytest.raises(UnsupportedLayer, match="depends on the other examples of the batch"):
        taser.SteinPenalty(backend=backend)(model, case.x, case.y, case.s)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["difference", "reverse"])
def test_instance_norm_in_training_mode_is_that_of_the_loss(backend: Backend) -> None:
    """By the statistics of each example, though it keeps running ones for evaluation."""
    case = cases.case("instancenorm")
    expected = taser.SteinPenalty(backend=backend)(case.model, case.x, case.y, case.s)
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True).double()
    norm.load_state_dict(case.model[1].state_dict(), strict=False)  # type: ignore[index]
    case.model[1] = norm  # type: ignore[operator]
    before = copy.deepcopy(norm.state_dict())
    found = taser.SteinPenalty(backend=backend)(case.model.train(), case.x, case.y, case.s)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(norm.state_dict(), before, rtol=0, atol=0)
    assert norm.track_running_stats
    values = [
        taser.SteinPenalty(backend=backend, batchnorm="running")(
            case.model.train(mode), case.x, case.y, case.s
        )
        for mode in (True, False)
    ]
    torch.testing.assert_close(values[0], values[1])


def test_buffers_that_a_forward_changes_are_left_as_they_were() -> None:
    class Counting(nn.Module):
        count: Tensor
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return x

    case, counting = cases.case("mlp"), Counting()
    own = counting.count
    model = nn.Sequential(counting, case.model)
    value = taser.SteinPenalty()(model, case.x, case.y, case.s)
    value.backward()
    assert counting.count is own
    assert not own
    assert not counting.mean.any()
    torch.testing.assert_close(value, taser.SteinPenalty()(case.model, case.x, case.y, case.s))


def quantised(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao goes in time
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear})


def scripted(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(model, torch.zeros(2, 6))


class Detached(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (quantised, "layer '0' is quantised"),
        (scripted, "is scripted"),
        (Detached, "no gradient in the model's parameters"),
        (nn.Module.half, r"layer '0' has parameters in torch\.float16"),
        (nn.Module.double, "failed with model = .*Sequential, x = float32 .*Double"),
    ],
)
def test_a_model_without_a_right_gradient_is_refused(
    change: Callable[[nn.Module], nn.Module], message: str
) -> None:
    case = cases.case("mlp")
    model, x, s = change(case.model.float()), case.x.float(), case.s.float()
    with pytest.raises(ValueError, match=message):
        taser.SteinPenalty()(model, x, case.y, s)


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


def test_frozen_restores_every_mode_even_after_an_error() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    model[1][0].eval()
    modes = [module.training for module in model.modules()]
    with eval_mode(model):
        assert not any(module.training for module in model.modules())
    with pytest.raises(RuntimeError, match="shapes"), eval_mode(model):
        model(torch.ones(2, 3) @ torch.ones(2, 3))
    assert [module.training for module in model.modules()] == modes
