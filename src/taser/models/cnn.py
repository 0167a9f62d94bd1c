"""A small convolutional network for quick studies."""

from itertools import pairwise

from torch import Tensor, nn

from .activation import Activation, factory
from .normalised import Normalised

COARSEST = 4
"""The image is halved until its longer side is no more than this."""


class SmallCNN(Normalised):
    """3×3 convolutions, two for each halving of the image: (B, *shape) → (B, classes).

    shape: (C, H, W); 8×8 images are halved once, 28×28 and 32×32 ones three times. `width`
    channels at full size, doubled with each halving, which is a stride and no max-pooling so
    that with a smooth activation the network is smooth. norm: BatchNorm after each convolution.
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (1, 28, 28),
        classes: int = 10,
        width: int = 32,
        activation: Activation = "relu",
        mean: tuple[float, ...] = (0.0,),
        std: tuple[float, ...] = (1.0,),
        norm: bool = True,
    ) -> None:
        super().__init__(mean, std)
        if len(shape) != 3:
            raise ValueError(f"shape should be (C, H, W); got {shape}")
        make = factory(activation)
        channels, height, side = shape

        def layer(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
            conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not norm)
            return [conv, *([nn.BatchNorm2d(outputs)] if norm else []), make()]

        widths = [width]
        while max(height, side) > COARSEST:
            height, side = (height + 1) // 2, (side + 1) // 2
            widths.append(2 * widths[-1])
        self.stem = nn.Sequential(*layer(channels, width, 1))
        self.stages = nn.Sequential(
            *(
                nn.Sequential(*layer(before, after, 2), *layer(after, after, 1))
                for before, after in pairwise(widths)
            )
        )
        self.head = nn.Linear(widths[-1] * height * side, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(self.normalise(x))).flatten(1))
