"""The built-in networks, and `build`, which makes one by its name."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter, signature
from itertools import pairwise
from math import prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from taser._names import normalise_name, unknown

Factory = Callable[[], nn.Module]
Activation = str | Factory
"""A name or a function that makes the layer: "silu" or `nn.SiLU`."""

# Softplus is near ReLU, as in smooth adversarial training (Xie et al., 2020).
ACTIVATIONS: dict[str, Factory] = {
    "relu": nn.ReLU, "silu": nn.SiLU, "softplus": partial(nn.Softplus, beta=10.0),
}  # fmt: skip


def activation_factory(activation: Activation) -> Factory:
    """The function that makes the layers; the Laplacian of a ReLU network is zero, silu's is not.

    >>> activation_factory("silu")(), activation_factory("softplus")()
    (SiLU(), Softplus(beta=10.0, threshold=20.0))
    """
    if isinstance(activation, str):
        if activation.lower() not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        return ACTIVATIONS[activation.lower()]
    if isinstance(activation, nn.Module) or not callable(activation):
        raise ValueError(f"activation should be a name or nn.SiLU, …; got {activation!r}")
    return activation


CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


class Normalised(nn.Module):
    """A network of (x − mean)/std, so that attacks, scores and penalties see x itself."""

    mean: Tensor  # one number per channel, or one for all
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], dims: int = 2) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean or not all(s > 0 for s in std):
            wanted = "mean and std should have one number for each channel, and std be positive"
            raise ValueError(f"{wanted}; got {mean} and {std}")
        for name, numbers in (("mean", mean), ("std", std)):  # 0 and 1 are numbers too
            self.register_buffer(name, torch.tensor([*map(float, numbers)]).view(-1, *[1] * dims))

    def normalise(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class SmallCNN(Normalised):
    """3×3 convolutions, two for each halving of the image: (B, *shape) → (B, classes).

    Images are halved down to 4×4. `width` channels at full size, doubled with each halving, by a
    stride and no max-pooling, which is not smooth. norm: BatchNorm after each convolution.
    """

    def __init__(
        self, shape: tuple[int, ...] = (1, 28, 28), classes: int = 10, width: int = 32,
        activation: Activation = "relu", mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,), norm: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(mean, std)
        if len(shape) != 3:
            raise ValueError(f"shape should be (C, H, W); got {shape}")
        make = activation_factory(activation)
        channels, height, side = shape

        def layer(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
            conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not norm)
            return [conv, *([nn.BatchNorm2d(outputs)] if norm else []), make()]

        widths = [width]
        while max(height, side) > 4:
            height, side = (height + 1) // 2, (side + 1) // 2
            widths.append(2 * widths[-1])
        self.stem = nn.Sequential(*layer(channels, width, 1))
        stages = [(*layer(a, b, 2), *layer(b, b, 1)) for a, b in pairwise(widths)]
        self.stages = nn.Sequential(*(nn.Sequential(*stage) for stage in stages))
        self.head = nn.Linear(widths[-1] * height * side, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(self.normalise(x))).flatten(1))


class MLP(Normalised):
    """`depth` hidden layers of `width` units: (B, *shape), flattened → (B, outputs)."""

    def __init__(
        self, shape: tuple[int, ...], outputs: int = 10, width: int = 256, depth: int = 2,
        activation: Activation = "relu", mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
    ) -> None:  # fmt: skip
        super().__init__(mean, std, dims=len(shape) - 1)
        if depth < 1:
            raise ValueError(f"depth should be at least 1 hidden layer; got {depth}")
        make, hidden = activation_factory(activation), [prod(shape), *[width] * depth]
        layers = [nn.Sequential(nn.Linear(a, b), make()) for a, b in pairwise(hidden)]
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.normalise(x).flatten(1)))


def _stages(block: Callable[..., nn.Module], widths: Sequence[int], blocks: int) -> nn.Module:
    """One stage of blocks per width after the first; all stages but the first halve the image."""
    stages: list[nn.Module] = []
    for before, after in pairwise(widths):
        first = block(before, after, 2 if stages else 1)
        stages.append(nn.Sequential(first, *(block(after, after, 1) for _ in range(1, blocks))))
    return nn.Sequential(*stages)


def _conv(inputs: int, outputs: int, stride: int = 1, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut: (B, inputs, H, W) → (B, outputs, H/stride, W/stride)."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Factory) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = _conv(outputs, outputs), nn.BatchNorm2d(outputs)
        self.activation = activation()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            shortcut = _conv(inputs, outputs, stride, 1)
            self.shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        h = self.activation(self.norm1(self.conv1(x)))
        return self.activation(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNet18(Normalised):
    """ResNet-18 with a 3×3 stem of stride one and no max-pooling, for images in [0, 1].

    (B, C, H, W) → (B, classes), C = len(mean). `width` channels at first, doubled in three stages.
    """

    def __init__(
        self, classes: int = 10, width: int = 64, activation: Activation = "relu",
        mean: tuple[float, ...] = CIFAR10_MEAN, std: tuple[float, ...] = CIFAR10_STD,
    ) -> None:  # fmt: skip
        super().__init__(mean, std)
        make = activation_factory(activation)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stem = nn.Sequential(_conv(len(mean), width), nn.BatchNorm2d(width), make())
        self.stages = _stages(partial(Block, activation=make), widths, 2)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stages(self.stem(self.normalise(x)))
        return self.head(h.mean((2, 3)))


class PreactivationBlock(nn.Module):
    """As `Block`, with each norm and activation before its convolution (He et al., 2016)."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, activation: Factory, dropout: float
    ) -> None:
        super().__init__()
        self.norm1, self.activation1 = nn.BatchNorm2d(inputs), activation()
        self.conv1 = _conv(inputs, outputs, stride)
        self.norm2, self.activation2 = nn.BatchNorm2d(outputs), activation()
        self.dropout, self.conv2 = nn.Dropout(dropout), _conv(outputs, outputs)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = _conv(inputs, outputs, stride, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.activation1(self.norm1(x))
        kept = x if self.shortcut is None else self.shortcut(h)
        h = self.dropout(self.activation2(self.norm2(self.conv1(h))))
        return kept + self.conv2(h)


class WideResNet(Normalised):
    """WRN-`depth`-`widen` for images in [0, 1] of any size: (B, C, H, W) → (B, classes).

    C = len(mean); depth: 6n + 4, n blocks in each stage of 16, 32 and 64 times `widen` channels.
    """

    def __init__(
        self, depth: int, widen: int, classes: int = 10, activation: Activation = "relu",
        mean: tuple[float, ...] = CIFAR10_MEAN, std: tuple[float, ...] = CIFAR10_STD,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(mean, std)
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth should be 6n + 4, such as 10, 16, 28 or 34; got {depth}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout should lie in [0, 1); got {dropout}")
        make = activation_factory(activation)
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.stem = _conv(len(mean), widths[0])
        block = partial(PreactivationBlock, activation=make, dropout=dropout)
        self.stages = _stages(block, widths, blocks)
        self.last = nn.Sequential(nn.BatchNorm2d(widths[-1]), make())
        self.head = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # as published: He et al. (2015)
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        h = self.last(self.stages(self.stem(self.normalise(x))))
        return self.head(h.mean((2, 3)))


# Each takes an input's shape, the number of outputs, and what all networks share (activation, mean,
# std); its keyword-only options are what `build` accepts for the name.
BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": lambda _, outputs, shared, *, width=64: ResNet18(outputs, width, **shared),
    "wideresnet28": lambda _, outputs, shared, *, width=10, dropout=0.0:
        WideResNet(28, width, outputs, dropout=dropout, **shared),
    "wideresnet34": lambda _, outputs, shared, *, width=10, dropout=0.0:
        WideResNet(34, width, outputs, dropout=dropout, **shared),
    "cnn": lambda shape, outputs, shared, *, width=32, norm=True:
        SmallCNN(shape, outputs, width, norm=norm, **shared),
    "mlp": lambda shape, outputs, shared, *, width=256, depth=2:
        MLP(shape, outputs, width, depth, **shared),
}  # fmt: skip


def build(
    name: str, *, classes: int | None, shape: tuple[int, ...], activation: Activation = "relu",
    width: int | None = None, mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None, **options: Any,
) -> nn.Module:  # fmt: skip
    """A network with random weights: (B, *shape) → (B, classes).

    name: "resnet18"; "wideresnet28" and "wideresnet34", the 28-10 and 34-10 of the literature;
    "cnn"; or "mlp"; classes, shape: the number of classes, None for regression (one output), and
    (C, H, W) or, for "mlp", (d,); activation: "relu", "silu", "softplus", or a class such as
    `nn.GELU`; width: channels of the first stage, the widening factor, or hidden units, by default
    as published; mean, std: normalise inputs, one number per channel or feature, measured on the
    training data (None: no normalisation); options: dropout for "wideresnet28" and
    "wideresnet34", norm for "cnn", depth for "mlp".

    >>> build("mlp", classes=3, shape=(4,), width=16, depth=1).head
    Linear(in_features=16, out_features=3, bias=True)
    """
    make = BUILDERS.get(normalise_name(name))
    if make is None:
        raise unknown("model", name, BUILDERS)
    if width is not None:
        options["width"] = width
    known = [k for k, p in signature(make).parameters.items() if p.kind is Parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, ["activation", "mean", "std", *known])
    outputs = 1 if classes is None else classes
    for what, number in {"classes": outputs, "width": options.get("width", 1)}.items():
        if number < 1:
            raise ValueError(f"{what} should be at least 1; got {number}")
    if not shape or min(shape) < 1:
        raise ValueError(f"shape should be (C, H, W) or (d,), each at least 1; got {shape}")
    if normalise_name(name) != "mlp" and len(shape) != 3:
        raise ValueError(f"{name} is for images of shape (C, H, W); got {shape}: take 'mlp'")
    scale = {"mean": mean or (0.0,) * shape[0], "std": std or (1.0,) * shape[0]}
    for what, numbers in scale.items():
        if len(numbers) != shape[0]:
            wanted = f"{shape[0]} numbers, one for each channel of inputs of shape {shape}"
            raise ValueError(f"{what} should have {wanted}; got {len(numbers)}")
    return make(tuple(shape), outputs, {"activation": activation, **scale}, **options)


class Wrapped(nn.Module):
    """A function of inputs as a module, with an eval mode that reaches the modules it calls.

    >>> import torch
    >>> net = torch.nn.Linear(4, 3)
    >>> model = Wrapped(lambda x: net(x.flatten(1)).log_softmax(1), net)
    >>> model(torch.zeros(2, 2, 2)).shape
    torch.Size([2, 3])
    """

    def __init__(self, function: Callable[[Tensor], Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.called = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        """function(x)."""
        return self.function(x)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Wrapped":
        """Raise if there are modules: the copy's function would call the originals."""
        if len(self.called):
            why = "the copy would call the same modules; write a torch.nn.Module with a forward"
            raise TypeError(f"a wrapped function cannot be copied, for {why}")
        return Wrapped(self.function).train(self.training)


OneOutput = Literal["logit", "probability"]


class TwoLogits(nn.Module):
    """A binary classifier with one output, as a classifier with logits (0, z): CE becomes BCE.

    model: (B, *) → (B,) or (B, 1); outputs: whether that is z or the probability of class 1. The
    state dict is the model's. The evaluation wraps models that have an attribute `outputs`.

    >>> import torch
    >>> TwoLogits(torch.nn.Linear(4, 1))(torch.zeros(2, 4)).shape
    torch.Size([2, 2])
    """

    def __init__(self, model: nn.Module, outputs: OneOutput = "logit") -> None:
        super().__init__()
        if outputs not in get_args(OneOutput):
            raise ValueError(f"outputs should be one of {get_args(OneOutput)}; got {outputs!r}")
        self.model, self.gives = model, outputs

    def forward(self, x: Tensor) -> Tensor:
        """(B, *) → (B, 2)."""
        z = self.model(x)
        if z.shape not in ((len(x),), (len(x), 1)):
            wanted = f"({len(x)},) or ({len(x)}, 1), one number an example"
            raise ValueError(f"the model should give {wanted}; got {tuple(z.shape)}")
        z = z.reshape(len(x))
        z = z if self.gives == "logit" else z.logit(eps=torch.finfo(z.dtype).eps)
        return torch.stack([torch.zeros_like(z), z], 1)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of the model."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict of the model."""
        return self.model.load_state_dict(*args, **kwargs)

    @classmethod
    def where_said(cls, model: Any) -> Any:
        """The model, wrapped if its attribute `outputs` says that it has one output."""
        said: Any = getattr(model, "outputs", None)
        return cls(model, said) if said in ("logit", "probability") else model
