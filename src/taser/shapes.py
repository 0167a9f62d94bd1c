"""Numbers shaped to meet the inputs that they belong to."""

from torch import Tensor


def rows_like(numbers: Tensor, x: Tensor) -> Tensor:
    """One number an example, (B,), shaped to multiply or to choose rows of x, (B, *): (B, 1, …).

    >>> import torch
    >>> rows_like(torch.arange(2), torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 1, 1, 1])
    """
    return numbers.view(-1, *[1] * (x.ndim - 1))
