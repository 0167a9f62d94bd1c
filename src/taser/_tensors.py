"""The default device, precision, and shapes of tensors."""

import torch
from torch import Tensor


def default_device() -> torch.device:
    """The GPU, if it computes in float64 as the statistics do; else the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found if found is not None and found.type != "mps" else torch.device("cpu")


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16; emulated, it is many times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def rows_like(numbers: Tensor, x: Tensor) -> Tensor:
    """One number an example, (B,), shaped to multiply or to choose rows of x, (B, *): (B, 1, …).

    >>> import torch
    >>> rows_like(torch.arange(2), torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 1, 1, 1])
    """
    return numbers.view(-1, *[1] * (x.ndim - 1))


def noise_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws of N(0, I) in the shape and dtype and on the device of x."""
    return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)


def full_precision(tensor: Tensor) -> Tensor:
    """At least float32: derivatives, exponentials and statistics are not for half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
