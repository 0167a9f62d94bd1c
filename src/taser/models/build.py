"""The built-in networks by name."""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from typing import Any

from torch import nn

from taser.nearest import plain, unknown

from .activation import Activation
from .cnn import SmallCNN
from .mlp import MLP
from .resnet import ResNet18
from .wide_resnet import WideResNet

Shape = tuple[int, ...]


# Each takes the shape of one input, the outputs and what all networks share (activation, mean,
# std); its keyword-only options are those that `build` accepts for its name.


def _resnet18(shape: Shape, outputs: int, shared: dict[str, Any], *, width: int = 64) -> nn.Module:
    _image("resnet18", shape)
    return ResNet18(outputs, width, **shared)


def _wide_resnet(
    layers: int, shape: Shape, outputs: int, shared: dict[str, Any],
    *, width: int = 10, dropout: float = 0.0,
) -> nn.Module:  # fmt: skip
    _image(f"wideresnet{layers}", shape)
    return WideResNet(layers, width, outputs, dropout=dropout, **shared)


def _cnn(
    shape: Shape, outputs: int, shared: dict[str, Any], *, width: int = 32, norm: bool = True
) -> nn.Module:
    _image("cnn", shape)
    return SmallCNN(shape, outputs, width, norm=norm, **shared)


def _mlp(
    shape: Shape, outputs: int, shared: dict[str, Any], *, width: int = 256, depth: int = 2
) -> nn.Module:
    return MLP(shape, outputs, width, depth, **shared)


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": _resnet18,
    "wideresnet28": partial(_wide_resnet, 28),
    "wideresnet34": partial(_wide_resnet, 34),
    "cnn": _cnn,
    "mlp": _mlp,
}


def build(
    name: str,
    *,
    classes: int | None,
    shape: Shape,
    activation: Activation = "relu",
    width: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    **options: Any,
) -> nn.Module:
    """A network with random weights: (B, *shape) → (B, classes).

    name
        "resnet18"; "wideresnet28" and "wideresnet34", the 28-10 and 34-10 of the literature;
        "cnn"; or "mlp".
    classes, shape
        The number of classes, None for regression (one output); (C, H, W) or, for "mlp", (d,).
    activation
        "relu", "silu", "softplus", or a class such as `nn.GELU`.
    width
        Channels of the first stage, the widening factor, or hidden units; None: as published.
    mean, std
        What to normalise inputs by: a number for each channel (for vectors, each feature),
        measured on the training data; None: inputs are taken as they are.
    options
        wideresnet28, wideresnet34: dropout. cnn: norm. mlp: depth.

    >>> build("mlp", classes=3, shape=(4,), width=16, depth=1).head
    Linear(in_features=16, out_features=3, bias=True)
    """
    make = BUILDERS.get(plain(name))
    if make is None:
        raise unknown("model", name, BUILDERS)
    if width is not None:
        options["width"] = width
    known = [
        p.name for p in signature(make).parameters.values() if p.kind is Parameter.KEYWORD_ONLY
    ]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, ["activation", "mean", "std", *known])
    outputs = 1 if classes is None else classes
    for what, number in {"classes": outputs, "width": options.get("width", 1)}.items():
        if number < 1:
            raise ValueError(f"{what} should be at least 1; got {number}")
    if not shape or min(shape) < 1:
        raise ValueError(f"shape should be (C, H, W) or (d,), each at least 1; got {shape}")
    shared = {
        "activation": activation,
        "mean": _of_each_channel("mean", mean, shape, 0.0),
        "std": _of_each_channel("std", std, shape, 1.0),
    }
    return make(tuple(shape), outputs, shared, **options)


def _of_each_channel(
    what: str, given: tuple[float, ...] | None, shape: Shape, default: float
) -> tuple[float, ...]:
    values = (default,) * shape[0] if given is None else tuple(given)
    if len(values) != shape[0]:
        raise ValueError(
            f"{what} should have {shape[0]} numbers, one for each channel of inputs of shape "
            f"{shape}; got {len(values)}"
        )
    return values


def _image(name: str, shape: Shape) -> None:
    if len(shape) != 3:
        raise ValueError(f"{name} is for images of shape (C, H, W); got {shape}: take 'mlp'")
