"""ResNet-18 for small images."""

from itertools import pairwise

from torch import Tensor, nn

from .activation import Activation, Factory, factory
from .normalised import CIFAR10_MEAN, CIFAR10_STD, Normalised


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut (He et al., 2016).

    (B, inputs, H, W) → (B, outputs, H/stride, W/stride). The shortcut is x itself, or, where the
    shape changes, a 1×1 convolution of x and its norm.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Factory) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.activation = activation()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = self.activation(self.norm1(self.conv1(x)))
        return self.activation(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNet18(Normalised):
    """ResNet-18 with a 3×3 stem of stride one and no max-pooling, for images in [0, 1].

    (B, C, H, W) → (B, classes). `width` channels in the first stage (64 as published), doubled in
    each of the next three. The length of `mean` and `std` gives C.
    """

    def __init__(
        self,
        classes: int = 10,
        width: int = 64,
        activation: Activation = "relu",
        mean: tuple[float, ...] = CIFAR10_MEAN,
        std: tuple[float, ...] = CIFAR10_STD,
    ) -> None:
        super().__init__(mean, std)
        make = factory(activation)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stem = nn.Sequential(
            nn.Conv2d(len(mean), width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), make()
        )
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    Block(before, after, 1 if stage == 0 else 2, make),
                    Block(after, after, 1, make),
                )
                for stage, (before, after) in enumerate(pairwise(widths))
            )
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stages(self.stem(self.normalise(x)))
        return self.head(h.mean((2, 3)))
