"""Built-in networks by name, and errors that give the nearest right one."""

import pytest
import torch
from torch import nn

from taser.models import MLP, ResNet18, SmallCNN, WideResNet, build

IMAGE = (3, 8, 8)


@pytest.mark.parametrize(
    ("name", "kind", "width"),
    [
        ("resnet18", ResNet18, 4),
        ("ResNet-18", ResNet18, 4),
        ("wideresnet28", WideResNet, 1),
        ("wideresnet34", WideResNet, 1),
        ("cnn", SmallCNN, 4),
        ("mlp", MLP, 4),
    ],
)
def test_names_give_networks(name: str, kind: type, width: int) -> None:
    model = build(name, classes=5, shape=IMAGE, width=width, activation="silu")
    assert type(model) is kind
    assert model(torch.rand(2, *IMAGE)).shape == (2, 5)
    assert any(isinstance(layer, nn.SiLU) for layer in model.modules())
    one = build(name, classes=None, shape=IMAGE, width=width)
    assert one(torch.rand(2, *IMAGE)).shape == (2, 1)


def test_unsaid_widths_are_the_published_ones() -> None:
    with torch.device("meta"):
        sizes = {
            name: sum(p.numel() for p in build(name, classes=10, shape=(3, 32, 32)).parameters())
            for name in ("resnet18", "wideresnet28", "wideresnet34")
        }
    assert sizes == {"resnet18": 11_173_962, "wideresnet28": 36_479_194, "wideresnet34": 46_160_474}


def test_inputs_are_normalised_only_by_what_is_given() -> None:
    plain = build("cnn", classes=2, shape=IMAGE, width=2)
    assert plain.mean.flatten().tolist() == [0, 0, 0]
    assert plain.std.flatten().tolist() == [1, 1, 1]
    given = build("cnn", classes=2, shape=IMAGE, width=2, mean=(0.5, 0.25, 0.0), std=(1, 2, 4))
    assert given.mean.flatten().tolist() == [0.5, 0.25, 0]
    assert given.std.flatten().tolist() == [1, 2, 4]


def test_options_reach_the_network() -> None:
    wide = build("wideresnet28", classes=2, shape=IMAGE, width=1, dropout=0.25)
    assert {layer.p for layer in wide.modules() if isinstance(layer, nn.Dropout)} == {0.25}
    assert len(build("mlp", classes=2, shape=(4,), depth=5).hidden) == 5
    bare = build("cnn", classes=2, shape=IMAGE, norm=False)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in bare.modules())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, "did you mean 'resnet18'"),
        ("wide_resnet_28", {"width": 0}, "width should be at least 1; got 0"),
        ("transformer", {}, "there are resnet18, wideresnet28, wideresnet34, cnn, mlp"),
        ("cnn", {"dept": 2}, "no option of cnn called 'dept'"),
        ("mlp", {"dept": 2}, "did you mean 'depth'"),
        ("mlp", {"actvation": "silu"}, "did you mean 'activation'"),
        ("mlp", {"activation": "slu"}, "did you mean 'silu'"),
        ("mlp", {"classes": 0}, "classes should be at least 1"),
        ("mlp", {"shape": ()}, r"\(C, H, W\) or \(d,\)"),
        ("mlp", {"shape": (3, 0, 8)}, "each at least 1"),
        ("cnn", {"shape": (4,)}, "take 'mlp'"),
        ("resnet18", {"shape": (4,)}, "take 'mlp'"),
        ("wideresnet28", {"shape": (8, 8)}, "take 'mlp'"),
        ("wideresnet34", {"shape": (8, 8)}, "take 'mlp'"),
        ("cnn", {"mean": (0.5,)}, "mean should have 3 numbers.*got 1"),
        ("cnn", {"std": (0.5,)}, "std should have 3 numbers.*got 1"),
    ],
)
def test_wrong_values_are_named(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, **{"classes": 2, "shape": IMAGE, **options})
