"""A network whose first act is to normalise its input."""

import torch
from torch import Tensor, nn

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


class Normalised(nn.Module):
    """A network of (x − mean)/std, so that attacks, scores and penalties all speak of x itself.

    mean, std: a number for each channel, or one for all; part of the weights. `dims` axes of x
    follow the channels: 2 for images (B, C, H, W), 0 for vectors (B, d).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], dims: int = 2) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean:
            raise ValueError(
                "mean and std should have one number for each channel; "
                f"got {len(mean)} and {len(std)}"
            )
        if not all(s > 0 for s in std):
            raise ValueError(f"std should be positive; got {std}")
        for name, numbers in (("mean", mean), ("std", std)):  # 0 and 1 are numbers too
            self.register_buffer(name, torch.tensor([*map(float, numbers)]).view(-1, *[1] * dims))

    def normalise(self, x: Tensor) -> Tensor:
        """(B, *) → (B, *)."""
        return (x - self.mean) / self.std
