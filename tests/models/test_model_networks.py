"""The networks: as large as published, of the right shape, and normalised inside."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from taser.models import MLP, ResNet18, SmallCNN, WideResNet, Wrapped
from taser.models._architectures import PreactivationBlock, activation_factory


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("make", "millions"),
    [
        (lambda: ResNet18(), 11.17),
        (lambda: WideResNet(28, 10), 36.5),
        (lambda: WideResNet(34, 10), 46.2),
        (lambda: WideResNet(40, 4), 8.9),
        (lambda: WideResNet(16, 8), 11.0),
    ],
)
def test_parameters_are_as_many_as_published(
    make: Callable[[], nn.Module], millions: float
) -> None:
    """To the last digit that the papers print; on the meta device nothing is allocated."""
    with torch.device("meta"):
        model = make()
    digits = len(str(millions).split(".")[1])
    assert round(size(model) / 1e6, digits) == millions


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (2, 7, 12), (4, 3, 3)])
def test_small_cnn_takes_any_image(shape: tuple[int, ...]) -> None:
    for norm in (True, False):
        model = SmallCNN(shape, classes=5, width=4, norm=norm)
        assert model(torch.rand(2, *shape)).shape == (2, 5)
        assert any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules()) == norm


@pytest.mark.parametrize("channels", [1, 3])
def test_residual_networks_take_any_size_and_channels(channels: int) -> None:
    mean, std = (0.5,) * channels, (0.2,) * channels
    for model in (
        ResNet18(7, 4, mean=mean, std=std),
        WideResNet(10, 1, 7, mean=mean, std=std, dropout=0.3),
    ):
        for side in (8, 28):
            assert model(torch.rand(2, channels, side, side)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(6,), (1, 8, 8), (3, 5, 4)])
def test_mlp_flattens_images_and_gives_one_number_for_regression(shape: tuple[int, ...]) -> None:
    assert MLP(shape, width=8)(torch.rand(2, *shape)).shape == (2, 10)
    assert MLP(shape, 1, width=8, depth=3)(torch.rand(2, *shape)).shape == (2, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda mean, std: ResNet18(3, 4, mean=mean, std=std),
        lambda mean, std: WideResNet(10, 1, 3, mean=mean, std=std),
        lambda mean, std: SmallCNN((2, 8, 8), 3, 4, mean=mean, std=std),
        lambda mean, std: MLP((2, 8, 8), 3, 4, mean=mean, std=std),
    ],
)
def test_the_input_is_normalised_by_channel(make: Callable[..., nn.Module]) -> None:
    plain = make((0.0, 0.0), (1.0, 1.0)).eval()
    inside = make((0.2, 0.7), (0.5, 0.25)).eval()
    state = plain.state_dict()
    inside.load_state_dict({**state, "mean": inside.mean, "std": inside.std})
    x = torch.rand(3, 2, 8, 8)
    mean, std = torch.tensor([0.2, 0.7]).view(2, 1, 1), torch.tensor([0.5, 0.25]).view(2, 1, 1)
    torch.testing.assert_close(inside(x), plain((x - mean) / std))


def test_vectors_are_normalised_by_feature() -> None:
    plain, inside = MLP((2,), 3, 4), MLP((2,), 3, 4, mean=(0.2, 0.7), std=(0.5, 0.25))
    inside.load_state_dict({**plain.state_dict(), "mean": inside.mean, "std": inside.std})
    x = torch.rand(5, 2)
    wanted = plain((x - torch.tensor([0.2, 0.7])) / torch.tensor([0.5, 0.25]))
    torch.testing.assert_close(inside(x), wanted)


def test_wide_blocks_activate_before_they_convolve() -> None:
    """With a last convolution of zeros a block is its shortcut, and nothing acts on the sum."""
    x = torch.randn(2, 4, 6, 6)
    same = PreactivationBlock(4, 4, 1, nn.ReLU, 0.0).eval()
    nn.init.zeros_(same.conv2.weight)
    assert torch.equal(same(x), x)
    other = PreactivationBlock(4, 8, 2, nn.ReLU, 0.0).eval()
    nn.init.zeros_(other.conv2.weight)
    assert other.shortcut is not None
    torch.testing.assert_close(other(x), other.shortcut(other.norm1(x).relu()))


@pytest.mark.parametrize("name", ["relu", "silu", "softplus", "SiLU"])
def test_activations_have_names(name: str) -> None:
    kind = type(activation_factory(name)())
    networks = [
        ResNet18(width=2, activation=name), WideResNet(10, 1, activation=name),
        SmallCNN(width=2, activation=name), MLP((4,), activation=name),
    ]  # fmt: skip
    for network in networks:
        layers = [type(layer) for layer in network.modules()]
        assert kind in layers
        assert not {nn.ReLU, nn.SiLU, nn.Softplus} - {kind} & set(layers)
    assert any(isinstance(layer, nn.GELU) for layer in ResNet18(activation=nn.GELU).modules())


def test_softplus_is_near_relu_and_smooth() -> None:
    """log(1 + e^{βx})/β is at most log(2)/β above ReLU, at 0, where its curvature is β/4."""
    x = torch.linspace(-3, 3, 601, dtype=torch.float64)
    softplus = activation_factory("softplus")()
    above = softplus(x) - x.relu()
    assert above.max() == above[300] == pytest.approx(0.0693, abs=1e-4)
    curvature = torch.func.grad(torch.func.grad(softplus))(torch.tensor(0.0, dtype=torch.float64))
    assert curvature == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: activation_factory("sliu"), "did you mean 'silu'"),
        (lambda: activation_factory(nn.SiLU()), "nn.SiLU"),  # type: ignore[arg-type]
        (lambda: activation_factory(3), "nn.SiLU"),  # type: ignore[arg-type]
        (lambda: WideResNet(29, 10), r"6n \+ 4.*29"),
        (lambda: WideResNet(4, 10), r"6n \+ 4"),
        (lambda: WideResNet(10, 1, dropout=1.0), r"\[0, 1\)"),
        (lambda: ResNet18(mean=(0.5,)), "one number for each channel"),
        (lambda: ResNet18(mean=(), std=()), "one number for each channel"),
        (lambda: ResNet18(std=(0.2, 0.0, 0.2)), "positive"),
        (lambda: SmallCNN((8, 8)), r"\(C, H, W\)"),
        (lambda: MLP((4,), depth=0), "at least 1"),
    ],
)
def test_wrong_values_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_whole_numbers_normalise_too() -> None:
    """As model.options.std=[1] has them: int64 buffers would cut off what is loaded."""
    plain = SmallCNN(mean=(0,), std=(1,))
    plain.load_state_dict(SmallCNN(mean=(0.5,), std=(0.3,)).state_dict())
    assert float(plain.std) == pytest.approx(0.3)


def test_resnet18_is_the_published_one() -> None:
    """That of the package pyautoattack, with the same weights and some statistics."""
    from pyautoattack.examples.resnet import ResNet18 as Published

    torch.manual_seed(0)
    ours, theirs = ResNet18().eval(), Published().eval()
    for module in ours.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    own = [tensor for name, tensor in ours.state_dict().items() if name not in ("mean", "std")]
    theirs.load_state_dict(dict(zip(theirs.state_dict(), own, strict=True)))
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(ours(x), theirs(ours.normalise(x)), rtol=1e-4, atol=1e-5)


def test_a_wrapped_function_around_a_network_cannot_be_copied() -> None:
    """The copy would call the original, so that changing its mode would change nothing."""
    network = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="same modules"):
        copy.deepcopy(Wrapped(lambda x: network(x), network))
    assert not copy.deepcopy(Wrapped(torch.sin).eval()).training
