"""Wide residual networks (Zagoruyko & Komodakis, 2016)."""

from itertools import pairwise

from torch import Tensor, nn

from .activation import Activation, Factory, factory
from .normalised import CIFAR10_MEAN, CIFAR10_STD, Normalised


class PreactivationBlock(nn.Module):
    """Two 3×3 convolutions, each after its norm and activation, and a shortcut.

    (B, inputs, H, W) → (B, outputs, H/stride, W/stride). The shortcut is x itself, or, where the
    shape changes, a 1×1 convolution of x after the first norm and activation.
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int, activation: Factory, dropout: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.activation1 = activation()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.activation2 = activation()
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.activation1(self.norm1(x))
        kept = x if self.shortcut is None else self.shortcut(h)
        h = self.dropout(self.activation2(self.norm2(self.conv1(h))))
        return kept + self.conv2(h)


class WideResNet(Normalised):
    """WRN-`depth`-`widen` for images in [0, 1] of any size: (B, C, H, W) → (B, classes).

    depth: 6n + 4, for n blocks in each of the three stages (28 and 34 in the literature); widen:
    how many times 16, 32 and 64 channels the stages have. The length of `mean` and `std` gives C.
    """

    def __init__(
        self,
        depth: int,
        widen: int,
        classes: int = 10,
        activation: Activation = "relu",
        mean: tuple[float, ...] = CIFAR10_MEAN,
        std: tuple[float, ...] = CIFAR10_STD,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(mean, std)
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth should be 6n + 4, such as 10, 16, 28 or 34; got {depth}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout should lie in [0, 1); got {dropout}")
        make = factory(activation)
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.stem = nn.Conv2d(len(mean), widths[0], 3, 1, 1, bias=False)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    PreactivationBlock(before, after, 1 if stage == 0 else 2, make, dropout),
                    *(PreactivationBlock(after, after, 1, make, dropout) for _ in range(1, blocks)),
                )
                for stage, (before, after) in enumerate(pairwise(widths))
            )
        )
        self.last = nn.Sequential(nn.BatchNorm2d(widths[-1]), make())
        self.head = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # as published: He et al. (2015)
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        h = self.last(self.stages(self.stem(self.normalise(x))))
        return self.head(h.mean((2, 3)))
