"""Whether a network may keep its channels last in memory, which is faster."""

from torch import nn

NARROW = 8


def bears_channels_last(model: nn.Module, device: str) -> bool:
    """False for a strided 1×1 convolution of fewer than eight channels on a CPU.

    Its weight gradient writes outside its memory there (torch 2.13, oneDNN, AVX2): a crash, or
    worse, none.
    """
    return device != "cpu" or not any(
        isinstance(layer, nn.Conv2d)
        and layer.kernel_size == (1, 1)
        and max(layer.stride) > 1
        and layer.in_channels < NARROW
        for layer in model.modules()
    )
