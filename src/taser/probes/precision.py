"""Out of half precision."""

import torch
from torch import Tensor


def full_precision(tensor: Tensor) -> Tensor:
    """At least float32: derivatives, exponentials and statistics are not for half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
