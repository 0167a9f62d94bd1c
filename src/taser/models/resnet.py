"""ResNet-18 for small images."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut (He et al., 2016)."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, activation: Callable[[], nn.Module]
    ) -> None:
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


class ResNet18(nn.Module):
    """ResNet-18 with a 3×3 stem of stride one and no max-pooling, for images in [0, 1].

    `width` channels in the first stage (64 as published), doubled in each of the next three.
    Inputs are normalised inside, so that attacks, scores and penalties all speak of pixels.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        classes: int = 10,
        width: int = 64,
        activation: Callable[[], nn.Module] = nn.ReLU,
        mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465),
        std: tuple[float, ...] = (0.2470, 0.2435, 0.2616),
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stem = nn.Sequential(
            nn.Conv2d(len(mean), width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), activation()
        )
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    Block(before, after, 1 if stage == 0 else 2, activation),
                    Block(after, after, 1, activation),
                )
                for stage, (before, after) in enumerate(pairwise(widths))
            )
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stages(self.stem((x - self.mean) / self.std))
        return self.head(h.mean((2, 3)))
